"""`Preprocessor`: media of any sizes to one batch of patches, with programs and buffers that are kept between calls."""

import inspect
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from kimi_jax_prep.batch import Failure, PatchBatch
from kimi_jax_prep.checks import check_keywords, one_of, positive_int
from kimi_jax_prep.config import KIMI_K25, ConfigLike, MediaProcConfig, as_config
from kimi_jax_prep.engine import process, runtime
from kimi_jax_prep.engine.backends import NumpyBackend, Patches, Target, XlaBackend
from kimi_jax_prep.engine.buffers import Pool
from kimi_jax_prep.engine.destination import Destination
from kimi_jax_prep.engine.normalize import NormalizePatches
from kimi_jax_prep.engine.programs import CompilationError
from kimi_jax_prep.engine.tiles import CompositeTile, all_passes
from kimi_jax_prep.media.items import Failures, Item, open_items, without
from kimi_jax_prep.media.opening import warn_of_clipping
from kimi_jax_prep.media.options import OPTIONS, MediaOptions
from kimi_jax_prep.packed import PackedPatches, pack_index
from kimi_jax_prep.plan import CAPACITIES
from kimi_jax_prep.tables.lut import dtype_name

BACKENDS = ("jax", "numpy")
ON_ERROR = ("raise", "skip")


class Preprocessor:
    """Turns media into patches under one config. Thread-safe; keeps memory and compiled programs.

    Its settings cannot be changed; make another object, which shares the compiled programs.

    Args:
      config: sizes, colour rules, mean and std: a `MediaProcConfig`, a mapping in either dialect, or the name of a
        preset, such as "k2.5".
      dtype: of `pixel_values`: "float32", "bfloat16", "float16" or "uint8" (bytes, to normalize on the device), or the
        same dtype as NumPy, JAX or torch write it.
      device: where `pixel_values` and `grid_thws` go as jax.Arrays: a `jax.Device`, a `jax.sharding.Sharding`, or a
        pair (mesh, partition spec). None gives NumPy arrays. Where the first axis is sharded, rows of zeros make
        `pixel_values` divide evenly, and `grid_thws` is replicated.
      num_threads: that decode, render and resize one call's frames, the calling thread included; None means the CPUs
        this process may run on. XLA has threads of its own: see docs/threads.md.
      max_cached_bytes: of free result, canvas and scratch memory that is kept; 0 keeps none.
      backend: "jax", or "numpy" (the same bits without JAX).
      **options: of `MediaOptions`: limits on untrusted media, EXIF, 16-bit images, layout of arrays.

    Raises:
      PlanError: an unknown dtype or backend, a number below its minimum, an impossible option.
      ConfigError: no config, or an unknown preset.
      TypeError: an unknown keyword.
    """

    def __init__(
        self,
        config: ConfigLike = KIMI_K25,
        *,
        dtype: Any = "float32",
        device: Any = None,
        num_threads: int | None = None,
        max_cached_bytes: int = 1 << 30,
        backend: str = "jax",
        **options: Any,
    ) -> None:
        one_of("backend", backend, BACKENDS)
        if num_threads is not None:
            num_threads = positive_int("num_threads", num_threads)
        if max_cached_bytes != 0:
            max_cached_bytes = positive_int("max_cached_bytes", max_cached_bytes)
        check_keywords(options, (*_SETTINGS, *OPTIONS))
        self._target = Target(as_config(config), dtype_name(dtype))
        self._options = MediaOptions(**options)
        self._destination = Destination(device)
        self._backend_name = backend
        self._num_threads_asked = num_threads
        self._num_threads = num_threads or process.num_cpus()
        self._pool = Pool(max_cached_bytes)

    @property
    def config(self) -> MediaProcConfig:
        """Sizes, colour rules, mean and std."""
        return self._target.config

    @property
    def dtype(self) -> str:
        """Name of the dtype of `pixel_values`."""
        return self._target.dtype

    @property
    def device(self) -> Any:
        """Where results go, or None for NumPy arrays."""
        return self._destination.asked

    @property
    def backend(self) -> str:
        """ "jax" or "numpy"."""
        return self._backend_name

    @property
    def options(self) -> MediaOptions:
        """How media are opened, unless a call says otherwise."""
        return self._options

    @property
    def num_threads(self) -> int:
        """Threads that work on one call."""
        return self._num_threads

    def __repr__(self) -> str:
        device = f", device={self.device!r}" if self.device is not None else ""
        return (
            f"Preprocessor({self.config!r}, dtype={self.dtype!r}, backend={self.backend!r}, "
            f"num_threads={self.num_threads}{device})"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"`{name}` of a Preprocessor cannot be set; make another Preprocessor.")
        super().__setattr__(name, value)

    def __call__(self, medias: Iterable[Any], *, on_error: str = "raise", **options: Any) -> PatchBatch:
        """Patches of media, in the caller's order.

        Args:
          medias: see `kimi_jax_prep.media`. An empty list gives empty arrays.
          on_error: "skip" leaves out media that cannot be read and lists them in the result's `failures`.
          **options: of `MediaOptions`, for this call.

        Raises:
          PrepError: with the index of the medium at fault.
          FileNotFoundError: a path does not exist; its index is in the message.
          TypeError: `medias` is one medium instead of a list, or an unknown keyword.
        """
        items, failures = self._open(medias, on_error, options)
        pixel_values = self._with_backend(lambda backend: backend.patches(items, failures))
        return self._destination.put(self._batch(pixel_values, items, failures))

    def pack(
        self, medias: Iterable[Any], *, capacity: int | None = None, max_media: int | None = None, **options: Any
    ) -> PackedPatches:
        """Patches of media in arrays of fixed shapes: `self(medias).pack(...)` without its copy of the patches.

        The launch writes into an array of `capacity` rows at once, by a program of that capacity that the first call
        compiles. `PatchBatch.pack` also takes `on_error="skip"` batches.

        Args:
          medias: as for a call.
          capacity: rows of `pixel_values`, a multiple of `merge_kernel_size` squared; None takes a step of the ladder.
          max_media: rows of `grid_thws`; None allows as many media as tokens.
          **options: of `MediaOptions`, for this call.

        Raises: as a call; PlanError also for more patches than `capacity` or more media than `max_media`, and for a
          capacity that does not divide evenly among the devices.
        """
        items, failures = self._open(medias, "raise", options)
        plans = [item.plan for item in items]
        index = pack_index(plans, capacity=capacity, max_media=max_media, sources=[item.source for item in items])
        rows = len(index["segment_ids"])
        pixel_values = self._with_backend(lambda backend: backend.filled(items, failures, rows))
        return self._destination.put_packed(PackedPatches(pixel_values, **index))

    @property
    def compiled_programs(self) -> tuple[str, ...]:
        """What is compiled in this process and of use to this object: one line for each program."""
        current = self._runtime()
        specs = current.programs.compiled() if current is not None else ()
        mine = [s for s in specs if not isinstance(s, NormalizePatches) or s == self._target.program(s.capacity)]
        return tuple(sorted(map(repr, mine)))

    @property
    def cached_bytes(self) -> int:
        """Bytes of free result, canvas and scratch memory that are kept for the next call."""
        return self._pool.cached_bytes

    def clear_cache(self) -> None:
        """Free that memory."""
        self._pool.clear()

    def warmup(self, *, max_patches: int | None = None, resize: bool = True) -> None:
        """Compile ahead, so that no later call has to.

        Args:
          max_patches: of one call's batch; by default what one image can have, padding included.
          resize: also every program that resizes.
        """
        current = self._runtime()
        if current is None:
            return
        if max_patches is None:
            # Padding comes after the budget. The most that was ever found on top of it is 31 % (for 4,096 patches).
            max_patches = self.config.in_patch_limit * 4 // 3
        specs: list[Any] = []
        for capacity in (c for c in CAPACITIES if c <= self._target.most_patches):
            specs.append(self._target.program(capacity))
            if capacity >= max_patches:
                break
        if resize:
            channels = (3, 4) if self.config.transparent_bg_config is not None else (3,)
            specs += itertools.chain.from_iterable(map(all_passes, channels))
            specs += [CompositeTile()] if 4 in channels else []
        try:
            for spec in specs:
                current.programs.wait(spec)
        except CompilationError:
            current.programs.warn_of_failure()

    def wait_until_compiled(self) -> None:
        """Return when no program is being compiled in the background. Measure time after this."""
        current = self._runtime()
        if current is not None:
            current.programs.wait_for_requested()

    def __reduce__(self) -> tuple[Any, ...]:
        # Memory and programs belong to a process; the settings make a new object in another one.
        settings = {
            "dtype": self.dtype,
            "num_threads": self._num_threads_asked,
            "max_cached_bytes": self._pool.max_bytes,
            "backend": self.backend,
            **self.options.changed(),
        }
        return _unpickled, (self.config, settings, self._destination)

    def _open(self, medias: Iterable[Any], on_error: str, options: dict[str, Any]) -> tuple[list[Item], Failures]:
        """Media with their plans, from their headers."""
        one_of("on_error", on_error, ON_ERROR)
        chosen = self._options.replace(**options)
        failures = Failures(skip=on_error == "skip")
        items = open_items(medias, self.config, chosen, failures)
        warn_of_clipping((item.medium for item in items), chosen)
        return items, failures

    def _runtime(self) -> runtime.Runtime | None:
        return None if self._backend_name == "numpy" else runtime.runtime()

    def _with_backend(self, make: Any) -> Patches:
        """What `make` returns for the backend in use. One that JAX breaks is made anew, then NumPy takes over."""
        # A signal handler or finalizer that interrupted this very thread inside XLA: XLA must not be entered again.
        if process.is_inside_xla():
            return make(NumpyBackend(self._target))
        for _ in range(2):
            current = self._runtime()
            if current is None:
                break
            try:
                made = make(XlaBackend(self._target, current, self._pool, self._num_threads))
            except Exception as err:
                if not _is_jaxs(err):
                    raise
                runtime.warn_of_failure(err)
                # Others may have deleted arrays or cleared the backends while this call ran.
                runtime.forget()
                self._pool.clear()
            else:
                current.programs.warn_of_failure()
                return made
        return make(NumpyBackend(self._target))

    def _batch(self, pixel_values: Patches, items: Sequence[Item], failures: Failures) -> PatchBatch:
        if failures:
            pixel_values, items = without(failures, pixel_values, items)
        plans = tuple(item.plan for item in items)
        return PatchBatch(
            pixel_values,
            np.array([plan.grid_thw for plan in plans], np.int64).reshape(-1, 3),
            plans,
            tuple(item.source for item in items),
            tuple(item.medium.prompt for item in items),
            tuple(Failure(i, failures[i]) for i in sorted(failures)),
            tuple(item.medium.size for item in items),
        )


_SETTINGS = tuple(inspect.signature(Preprocessor).parameters)[:-1]


def _unpickled(config: MediaProcConfig, settings: dict[str, Any], destination: Destination) -> Preprocessor:
    return Preprocessor(config, device=destination.asked, **settings)


def _is_jaxs(err: Exception) -> bool:
    """Whether JAX itself broke: its runtime failed, or somebody deleted an array or cleared the backends."""
    return isinstance(err, CompilationError | jax.errors.JaxRuntimeError) or runtime.is_deletion(err)


_SHARED: OrderedDict[tuple[MediaProcConfig, str], Preprocessor] = OrderedDict()
_SHARED_POOL = Pool(1 << 30)
_MOST_SHARED = 32


def preprocess(
    medias: Iterable[Any],
    *,
    config: ConfigLike = KIMI_K25,
    dtype: Any = "float32",
    on_error: str = "raise",
    **options: Any,
) -> PatchBatch:
    """Patches of media, in the caller's order: `Preprocessor(config, dtype=dtype)(medias, ...)`.

    The object behind it is kept for the next call with the same config and dtype. All of them share one limit of
    cached bytes, 1 GiB; `clear_cache` frees that memory. Args and errors: as `Preprocessor` and its call.
    """
    return shared_preprocessor(config, dtype=dtype)(medias, on_error=on_error, **options)


def shared_preprocessor(config: ConfigLike, *, dtype: Any) -> Preprocessor:
    """The `Preprocessor` of this process for a config and dtype, made if there is none."""
    key = (as_config(config), dtype_name(dtype))
    prep = _SHARED.get(key)
    if prep is None:
        prep = Preprocessor(key[0], dtype=key[1])
        prep._pool = _SHARED_POOL
        # Two threads that meet here make two; the first stored one stays. Both work.
        prep = _SHARED.setdefault(key, prep)
        while len(_SHARED) > _MOST_SHARED:
            _SHARED.popitem(last=False)
    return prep


def cached_bytes() -> int:
    """Bytes that `preprocess` and `KimiImageProcessor` keep for their next call: free buffers, and resize taps."""
    return _SHARED_POOL.cached_bytes + runtime.cached_bytes()


def clear_cache() -> None:
    """Free what `cached_bytes` counts. Compiled programs stay."""
    _SHARED_POOL.clear()
    runtime.clear()
