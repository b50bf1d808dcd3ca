"""Many media of any sizes in one batch: open, plan, place, cut; memory and programs are used again.

All frames are placed in one flat canvas, padded, one after another; a canvas of N patches has exactly N patches of
pixels. One program for each capacity cuts it into patches through windows at run-time positions, so that nothing
about a picture's size is compiled in.
"""

import functools
import inspect
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped, UInt32

from kimi_jax_prep import reference
from kimi_jax_prep.batch import Failure, PatchBatch
from kimi_jax_prep.checks import check_keywords, positive_int
from kimi_jax_prep.config import KIMI_K25, MediaProcConfig
from kimi_jax_prep.engine import programs as _programs
from kimi_jax_prep.engine.buffers import Lent, Owner, Pool
from kimi_jax_prep.engine.cut import BYTES_A_PIXEL, CutPatches, table_of, windows
from kimi_jax_prep.engine.placement import place
from kimi_jax_prep.engine.tiles import CompositeTile, all_passes
from kimi_jax_prep.engine.workers import in_turn, side_by_side
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.fork import forked_after_jax
from kimi_jax_prep.host.render import render
from kimi_jax_prep.media.image import Frame
from kimi_jax_prep.media.items import Failures, Item, num_patches_of, open_items, without
from kimi_jax_prep.media.opening import warn_of_clipping
from kimi_jax_prep.media.options import OPTIONS, MediaOptions
from kimi_jax_prep.plan import CAPACITIES, patch_capacity
from kimi_jax_prep.tables.lut import normalize_lut, output_dtype

BACKENDS = ("jax", "numpy")
ON_ERROR = ("raise", "skip")
# What the NumPy path takes for one patch, and XLA's compiler for one program, in seconds on a slow core. Below their
# ratio a caller is answered by NumPy while the program is compiled in the background.
_NUMPY_PATCH, _COMPILING = 10e-6, 0.15
# Pixels that are worth a task of their own.
_TASK_PIXELS = 1 << 18


class Preprocessor:
    """Turns media into patches under one config. Thread-safe; keeps memory and compiled programs.

    Args:
      config: sizes, colour rules, mean and std.
      dtype: of `pixel_values`: "float32", "bfloat16", "float16" or "uint8" (bytes, to normalize on the device).
      device: where `pixel_values` and `grid_thws` go as jax.Arrays; None gives NumPy arrays.
      num_threads: of this library's own pool, which decodes, places and resizes; None means the CPUs this process may
        run on. XLA's pool is a different one: see docs/threads.md.
      max_cached_bytes: of free result and canvas memory that is kept; 0 keeps none.
      backend: "jax", or "numpy" for the reference's path (the same bits, no JAX).
      **options: of `MediaOptions`: limits on strangers' media, EXIF, 16-bit pictures, layout of arrays.

    Raises:
      PlanError: an unknown dtype or backend, a number below its minimum, an impossible option.
      TypeError: an unknown keyword.
    """

    def __init__(
        self,
        config: MediaProcConfig = KIMI_K25,
        *,
        dtype: str = "float32",
        device: Any = None,
        num_threads: int | None = None,
        max_cached_bytes: int = 1 << 30,
        backend: str = "jax",
        **options: Any,
    ) -> None:
        if not isinstance(config, MediaProcConfig):
            raise TypeError(
                f"`config` is a MediaProcConfig, such as KIMI_K25, or read by "
                f"MediaProcConfig.from_json_file; got {type(config).__name__}."
            )
        output_dtype(dtype)
        if backend not in BACKENDS:
            raise PlanError(f"`backend` is {backend!r}; expected one of {', '.join(map(repr, BACKENDS))}.")
        if num_threads is not None:
            num_threads = positive_int("num_threads", num_threads)
        if max_cached_bytes != 0:
            max_cached_bytes = positive_int("max_cached_bytes", max_cached_bytes)
        check_keywords(options, (*_SETTINGS, *OPTIONS))
        self.options = MediaOptions(**options)
        self.config = config
        self.dtype = dtype
        self.device = device
        self.backend = backend
        self._num_threads_asked = num_threads
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self._pool = Pool(max_cached_bytes)
        self._lut = normalize_lut(config, dtype=dtype)
        self._one_table = bool((self._lut == self._lut[:, :1]).all())
        if self._one_table:
            self._lut = np.ascontiguousarray(self._lut[:, 0])
        self._table = table_of(self._lut)
        # A window's last byte is addressed with 32 bits.
        most = (2**31 - 1) // (config.patch_size**2 * BYTES_A_PIXEL)
        self._most_patches = max(c for c in CAPACITIES if c <= most)

    def __call__(self, medias: Iterable[Any], *, on_error: str = "raise", **options: Any) -> PatchBatch:
        """Patches of media, in the caller's order.

        Args:
          medias: see `kimi_jax_prep.media`. An empty list gives empty arrays.
          on_error: "skip" leaves media out that cannot be read, and lists them in the result's `failures`.
          **options: of `MediaOptions`, for this call.

        Raises:
          PrepError: with the index of the medium at fault.
          FileNotFoundError: a path does not exist; its index is in the message.
          TypeError: `medias` is one medium instead of a list, or an unknown keyword.
        """
        if on_error not in ON_ERROR:
            raise PlanError(f"`on_error` is {on_error!r}; expected one of {', '.join(map(repr, ON_ERROR))}.")
        chosen = self.options.replace(**options)
        failures = Failures(skip=on_error == "skip")
        items = open_items(medias, self.config, chosen, failures)
        warn_of_clipping((item.medium for item in items), chosen)
        n = num_patches_of(items)
        if self.backend == "numpy" or forked_after_jax():
            pixel_values = self._with_numpy(items, failures)
        elif n > self._most_patches:
            pixel_values = self._in_parts(items, failures)
        else:
            pixel_values = self._with_jax(items, failures)
        if failures:
            pixel_values, items = without(failures, pixel_values, items)
        plans = tuple(item.plan for item in items)
        return self._to_device(
            PatchBatch(
                pixel_values,
                np.array([plan.grid_thw for plan in plans], np.int64).reshape(-1, 3),
                plans,
                tuple(item.source for item in items),
                tuple(item.medium.prompt for item in items),
                tuple(Failure(i, failures[i]) for i in sorted(failures)),
            )
        )

    @property
    def compiled_programs(self) -> tuple[str, ...]:
        """What is compiled in this process and of use to this object: one line for each program."""
        mine = [
            spec
            for spec in _programs.PROGRAMS.compiled()
            if not isinstance(spec, CutPatches) or spec == self._cut(spec.capacity)
        ]
        return tuple(sorted(map(repr, mine)))

    @property
    def cached_bytes(self) -> int:
        """Bytes of free result and canvas memory that are kept for the next call."""
        return self._pool.cached_bytes

    def clear_cache(self) -> None:
        """Give that memory back."""
        self._pool.clear()

    def warmup(self, *, max_patches: int | None = None, resize: bool = True) -> None:
        """Compile ahead, so that no later call meets a new program.

        Args:
          max_patches: of one call's batch; by default what one image can have, padding included.
          resize: also every program that resizes.
        """
        if self.backend == "numpy" or forked_after_jax():
            return
        if max_patches is None:
            # Padding comes after the budget. The most that was ever found on top of it is 31 % (for 4,096 patches).
            max_patches = self.config.in_patch_limit * 4 // 3
        for capacity in CAPACITIES:
            _programs.PROGRAMS.wait(self._cut(capacity))
            if capacity >= min(max_patches, self._most_patches):
                break
        if resize:
            channels = (3, 4) if self.config.transparent_bg_config is not None else (3,)
            for spec in itertools.chain.from_iterable(map(all_passes, channels)):
                _programs.PROGRAMS.wait(spec)
            if 4 in channels:
                _programs.PROGRAMS.wait(CompositeTile())

    def wait_until_compiled(self) -> None:
        """Return when no program is being compiled in the background. Measure time after this."""
        _programs.PROGRAMS.wait_for_requested()

    def __reduce__(self) -> tuple[Any, ...]:
        # Memory and programs belong to a process; the settings make a new object in another one.
        settings = {
            "dtype": self.dtype,
            "device": self.device,
            "num_threads": self._num_threads_asked,
            "max_cached_bytes": self._pool.max_bytes,
            "backend": self.backend,
            **self.options.changed(),
        }
        return functools.partial(Preprocessor, self.config, **settings), ()

    def _cut(self, capacity: int) -> CutPatches:
        return CutPatches(capacity, self.config.patch_size, self.dtype, self._one_table)

    def _with_jax(self, items: Sequence[Item], failures: Failures) -> Shaped[np.ndarray, "n 3 p p"]:
        n = num_patches_of(items)
        spec, program = self._program_for(n)
        if program is None:
            return self._with_numpy(items, failures)
        p = self.config.patch_size
        used = spec.capacity * p * p * BYTES_A_PIXEL
        # Canvases of one power of two serve all capacities below it.
        size = 1 << (used - 1).bit_length()
        key = ("canvas", size)
        canvas = self._pool.take(key) or Lent((size,), np.uint8, _programs.cpu_device())
        try:
            self._place(items, canvas.array[:used].view(np.uint32), failures)
            start, stride = windows([item.plan for item in items], p, spec.capacity)
            result = program(canvas.on_device(used), start, stride, self._table, self._old_result(spec))
            result.block_until_ready()
        finally:
            # Every task has ended and every launch is over, also after an error.
            self._pool.give(key, size, canvas)
        owner = Owner(result, self._pool, spec)
        dtype = output_dtype(self.dtype)
        return owner.bytes()[: n * 3 * p * p * dtype.itemsize].view(dtype).reshape(n, 3, p, p)

    def _program_for(self, num_patches: int) -> tuple[CutPatches, Callable[..., jax.Array] | None]:
        """The program that serves so many patches now: its own, a larger one that is compiled, or none yet."""
        own = self._cut(patch_capacity(num_patches))
        program = _programs.PROGRAMS.ready(own)
        if program is None and num_patches * _NUMPY_PATCH > _COMPILING:
            program = _programs.PROGRAMS.wait(own)
        if program is None:
            _programs.PROGRAMS.request(own)
            for larger in CAPACITIES:
                if own.capacity < larger <= 2 * own.capacity:
                    spec = self._cut(larger)
                    program = _programs.PROGRAMS.ready(spec)
                    if program is not None:
                        return spec, program
        return own, program

    def _old_result(self, spec: CutPatches) -> jax.Array:
        kept = self._pool.take(spec)
        if kept is not None:
            return kept
        shape, dtype = spec.shapes()[-1]
        return jax.device_put(np.zeros(shape, dtype), _programs.cpu_device(), may_alias=False)  # type: ignore[arg-type]  # a name of a dtype

    def _place(self, items: Sequence[Item], canvas: UInt32[np.ndarray, "pixels"], failures: Failures) -> None:
        frames = list(_frames_on(canvas, items, self.config.patch_size))
        shares = list(_shares(frames)) if self.num_threads > 1 else [frames]
        # Where shares are few, the strips of each frame are shared out instead.
        by_frame = len(shares) >= self.num_threads
        run = in_turn if by_frame else functools.partial(side_by_side, num_threads=self.num_threads)

        def work(share: list[tuple[Item, Frame, np.ndarray]]) -> None:
            for item, frame, rectangle in share:
                if item.source not in failures:
                    with failures.about(item.source):
                        place(frame.load(), item.plan, self.config, rectangle, run)

        tasks = [functools.partial(work, share) for share in shares]
        if by_frame:
            side_by_side(tasks, self.num_threads)
        else:
            in_turn(tasks)

    def _with_numpy(self, items: Sequence[Item], failures: Failures) -> Shaped[np.ndarray, "n 3 p p"]:
        p = self.config.patch_size
        out = np.empty((num_patches_of(items), 3, p, p), output_dtype(self.dtype))
        first = 0
        for item in items:
            plan = item.plan
            size = plan.num_patches // plan.grid_thw[0]
            for k, frame in enumerate(item.medium.frames):
                if item.source in failures:
                    break
                with failures.about(item.source):
                    pixels = np.asarray(render(frame.load(), plan, self.config))
                    padded = np.pad(pixels, ((0, plan.pad_bottom), (0, plan.pad_right), (0, 0)))
                    patches = reference.patchify(padded[None], p)
                    part = out[first + k * size : first + (k + 1) * size]
                    for c in range(3):
                        lut = self._lut if self._one_table else self._lut[:, c]
                        part[:, c] = lut[patches[:, c]]
            first += plan.num_patches
        return out

    def _in_parts(self, items: Sequence[Item], failures: Failures) -> Shaped[np.ndarray, "n 3 p p"]:
        p = self.config.patch_size
        out = np.empty((num_patches_of(items), 3, p, p), output_dtype(self.dtype))
        first = begin = 0
        for end in range(1, len(items) + 1):
            if end == len(items) or num_patches_of(items[begin : end + 1]) > self._most_patches:
                part = self._with_jax(items[begin:end], failures)
                out[first : first + len(part)] = part
                first += len(part)
                begin = end
        return out

    def _to_device(self, batch: PatchBatch) -> PatchBatch:
        if self.device is None:
            return batch
        if forked_after_jax():
            raise RuntimeError("this process was forked after JAX had started, so nothing can go to a JAX device in it")
        wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # set by JAX at run time
        grids = batch.grid_thws if wide else batch.grid_thws.astype(np.int32)
        return replace(
            batch,
            pixel_values=jax.device_put(batch.pixel_values, self.device),
            grid_thws=jax.device_put(grids, self.device),
        )


_SETTINGS = tuple(inspect.signature(Preprocessor).parameters)[:-1]


def _frames_on(
    canvas: UInt32[np.ndarray, "pixels"], items: Iterable[Item], patch_size: int
) -> Iterator[tuple[Item, Frame, np.ndarray]]:
    """Every frame with its rectangle of the canvas."""
    at = 0
    for item in items:
        _, rows, columns = item.plan.grid_thw
        height, width = rows * patch_size, columns * patch_size
        for frame in item.medium.frames:
            yield item, frame, canvas[at : at + height * width].reshape(height, width)
            at += height * width


def _shares(frames: Iterable[tuple[Item, Frame, np.ndarray]]) -> Iterator[list[Any]]:
    """Runs of frames that are worth a task of their own."""
    share, pixels = [], 0
    for placed in frames:
        share.append(placed)
        width, height = placed[1].size
        pixels += width * height
        if pixels >= _TASK_PIXELS:
            yield share
            share, pixels = [], 0
    if share:
        yield share


_SHARED: OrderedDict[tuple[MediaProcConfig, str], Preprocessor] = OrderedDict()
_SHARED_POOL = Pool(1 << 30)
_MOST_SHARED = 32


def preprocess(
    medias: Iterable[Any],
    *,
    config: MediaProcConfig = KIMI_K25,
    dtype: str = "float32",
    on_error: str = "raise",
    **options: Any,
) -> PatchBatch:
    """Patches of media, in the caller's order: `Preprocessor(config, dtype=dtype)(medias, ...)`.

    The object behind it is kept for the next call with the same config and dtype, and all of them share one limit of
    cached bytes. Args and errors: as `Preprocessor` and its call.
    """
    return shared_preprocessor(config, dtype=dtype)(medias, on_error=on_error, **options)


def shared_preprocessor(config: MediaProcConfig, *, dtype: str) -> Preprocessor:
    """The `Preprocessor` of this process for a config and dtype, made if there is none."""
    key = (config, dtype)
    prep = _SHARED.get(key)
    if prep is None:
        prep = Preprocessor(config, dtype=dtype)
        prep._pool = _SHARED_POOL
        # Two threads that meet here make two; the first stored one stays. Both work.
        prep = _SHARED.setdefault(key, prep)
        while len(_SHARED) > _MOST_SHARED:
            _SHARED.popitem(last=False)
    return prep
