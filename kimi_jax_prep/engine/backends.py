"""Two ways from planned media to patches, with the same bits: through XLA, and through NumPy and Pillow."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import jax
import numpy as np
from jaxtyping import Shaped, UInt32

from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.engine.buffers import HostBuffer, Pool, ResultBuffer
from kimi_jax_prep.engine.canvas import BYTES_A_PIXEL, FrameCanvas
from kimi_jax_prep.engine.frames import FrameRenderer
from kimi_jax_prep.engine.normalize import NormalizePatches, table_of
from kimi_jax_prep.engine.process import InsideXla
from kimi_jax_prep.engine.programs import CompilationError, Program
from kimi_jax_prep.engine.runtime import Runtime
from kimi_jax_prep.engine.workers import Call
from kimi_jax_prep.host.patches import frame_patches
from kimi_jax_prep.media.image import Frame
from kimi_jax_prep.media.items import Failures, Item, num_patches_of
from kimi_jax_prep.plan import CAPACITIES, patch_capacity
from kimi_jax_prep.tables.lut import normalize_lut, output_dtype

# Seconds that NumPy takes for one patch, and XLA's compiler for one program, on a slow core. Below their ratio NumPy
# answers while the program compiles in the background.
_NUMPY_PATCH, _COMPILING = 10e-6, 0.15
# Minimum pixels of a task; smaller frames are grouped.
_TASK_PIXELS = 1 << 18

Patches = Shaped[np.ndarray, "n 3 p p"]
_Placed = tuple[Item, Frame, FrameCanvas]


class Target:
    """What a `Preprocessor` makes: the config, the output dtype, and the byte table of both.

    Args:
      dtype: one of the four names of `tables.lut.DTYPES`.
    """

    def __init__(self, config: MediaProcConfig, dtype: str) -> None:
        self.config = config
        self.dtype = dtype
        self.numpy_dtype = output_dtype(dtype)
        lut = normalize_lut(config, dtype=dtype)
        bits = lut.view(f"u{lut.itemsize}")  # so that -0.0 is not 0.0
        self.one_table = bool((bits == bits[:, :1]).all())
        """Whether all channels share one table of 256 entries."""
        self.lut = np.ascontiguousarray(lut[:, 0]) if self.one_table else lut
        self.table = table_of(self.lut)
        # A canvas has at most 2 GiB; larger batches are made in parts.
        most = (2**31 - 1) // (config.patch_size**2 * BYTES_A_PIXEL)
        self.most_patches = max((c for c in CAPACITIES if c <= most), default=0)
        """Patches that one launch can make; 0 where one patch alone is too large."""

    def program(self, capacity: int) -> NormalizePatches:
        """The program that makes up to so many patches."""
        return NormalizePatches(capacity, self.config.patch_size, self.dtype, self.one_table)

    def empty(self, num_patches: int) -> Patches:
        """Memory for so many patches."""
        p = self.config.patch_size
        return np.empty((num_patches, 3, p, p), self.numpy_dtype)


class Backend(Protocol):
    """Makes patches of planned media."""

    def patches(self, items: Sequence[Item], failures: Failures) -> Patches:
        """Patches of all items, one after another; those of items in `failures` hold anything."""
        ...

    def filled(self, items: Sequence[Item], failures: Failures, capacity: int) -> Patches:
        """The same in an array of `capacity` rows, zeros beyond the patches."""
        ...


class NumpyBackend:
    """NumPy and Pillow, on the calling thread. Needs nothing of JAX."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def patches(self, items: Sequence[Item], failures: Failures) -> Patches:
        """As of `Backend`."""
        out = self._target.empty(num_patches_of(items))
        first = 0
        for item in items:
            self._medium(item, failures, out[first : first + item.plan.num_patches])
            first += item.plan.num_patches
        return out

    def filled(self, items: Sequence[Item], failures: Failures, capacity: int) -> Patches:
        """As of `Backend`."""
        n = num_patches_of(items)
        out = self._target.empty(capacity)
        out[:n] = self.patches(items, failures)
        out[n:] = 0
        return out

    def _medium(self, item: Item, failures: Failures, out: Patches) -> None:
        size = item.plan.num_patches // item.plan.grid_thw[0]
        for k, frame in enumerate(item.medium.frames):
            if item.source in failures:
                return
            with failures.about(item.source):
                part = out[k * size : (k + 1) * size]
                frame_patches(frame.load(), item.plan, self._target.config, self._target.lut, part)


class XlaBackend:
    """Compiled programs: all frames are rendered onto one canvas, and one launch normalizes it.

    A canvas of N patches has exactly N patches of pixels, in the order of the result, so that nothing about a picture's
    size is compiled in.
    """

    def __init__(self, target: Target, runtime: Runtime, pool: Pool, num_threads: int) -> None:
        self._target = target
        self._runtime = runtime
        self._pool = pool
        self._num_threads = num_threads
        self._numpy = NumpyBackend(target)
        self._renderer = FrameRenderer(target.config, runtime, pool)

    def patches(self, items: Sequence[Item], failures: Failures) -> Patches:
        """As of `Backend`. More patches than one launch can make are made in parts."""
        n = num_patches_of(items)
        if n > self._target.most_patches:
            return self._in_parts(items, failures)
        spec, program = self.program_for(n)
        if program is None:
            return self._numpy.patches(items, failures)
        return self._launched(spec, program, items, failures)[:n]

    def filled(self, items: Sequence[Item], failures: Failures, capacity: int) -> Patches:
        """As of `Backend`. The program of this very capacity writes the array; the first call compiles it."""
        if capacity > self._target.most_patches:
            return self._numpy.filled(items, failures, capacity)
        spec = self._target.program(capacity)
        try:
            program = self._runtime.programs.wait(spec)
        except CompilationError:
            return self._numpy.filled(items, failures, capacity)
        out = self._launched(spec, program, items, failures)
        out[num_patches_of(items) :] = 0
        return out

    def program_for(self, num_patches: int) -> tuple[NormalizePatches, Program | None]:
        """The program that serves so many patches now: its own, a larger compiled one, or none yet."""
        programs = self._runtime.programs
        own = self._target.program(patch_capacity(num_patches))
        program = programs.ready(own)
        if program is None and num_patches * _NUMPY_PATCH > _COMPILING:
            try:
                program = programs.wait(own)
            except CompilationError:
                return own, None
        if program is None:
            programs.request(own)
            for larger in CAPACITIES:
                if own.capacity < larger <= 2 * own.capacity:
                    spec = self._target.program(larger)
                    program = programs.ready(spec)
                    if program is not None:
                        return spec, program
        return own, program

    def _launched(self, spec: NormalizePatches, program: Program, items: Sequence[Item], failures: Failures) -> Patches:
        p, device = self._target.config.patch_size, self._runtime.device
        used = spec.capacity * p * p
        # Canvases of one power of two serve all capacities below it.
        size = 1 << (used - 1).bit_length()
        with Call(self._pool, self._num_threads) as call:
            key, new = ("canvas", size, device), lambda: HostBuffer((size,), np.uint32, device)
            canvas = call.lease(key, size * BYTES_A_PIXEL, new)
            self._render(call, items, canvas.array, failures)
            with InsideXla():
                owner = self._normalized(spec, program, canvas.on_device(used))
        return owner.bytes().view(self._target.numpy_dtype).reshape(spec.capacity, 3, p, p)

    def _normalized(self, spec: NormalizePatches, program: Program, canvas: jax.Array) -> ResultBuffer:
        """Launch, and wait for the result. All arrays of the launch are gone on return: freeing them enters XLA too."""
        result = program(canvas, self._target.table, self._old_result(spec))
        result.block_until_ready()
        return ResultBuffer(result, self._pool, (spec, self._runtime.device))

    def _old_result(self, spec: NormalizePatches) -> jax.Array:
        """A buffer that the program may write its result to."""
        kept = self._pool.take((spec, self._runtime.device))
        if kept is not None and not kept.is_deleted():
            return kept
        shape, dtype = spec.shapes()[-1]
        zeros = np.zeros(shape, dtype)  # type: ignore[arg-type]  # the name of a dtype
        return jax.device_put(zeros, self._runtime.device, may_alias=False)

    def _render(
        self, call: Call, items: Sequence[Item], canvas: UInt32[np.ndarray, "pixels"], failures: Failures
    ) -> None:
        """Every frame onto the canvas; tasks are groups of frames, or strips of one frame where there are few."""
        frames = list(_placed(canvas, items, self._target.config.patch_size))
        groups = list(_groups(frames)) if self._num_threads > 1 else [frames]
        by_frame = len(groups) >= self._num_threads
        strips = call.run_in_turn if by_frame else call.run

        def work(group: list[_Placed]) -> None:
            for item, frame, part in group:
                if item.source not in failures and not call.is_stopped:
                    with failures.about(item.source):
                        self._renderer.render(frame.load(), item.plan, part, strips)

        tasks = [functools.partial(work, group) for group in groups]
        if by_frame:
            call.run(tasks)
        else:
            call.run_in_turn(tasks)

    def _in_parts(self, items: Sequence[Item], failures: Failures) -> Patches:
        most = self._target.most_patches
        out = self._target.empty(num_patches_of(items))
        first = begin = 0
        for end in range(1, len(items) + 1):
            if end == len(items) or num_patches_of(items[begin : end + 1]) > most:
                part = items[begin:end]
                n = num_patches_of(part)
                # One medium alone may be too large for any launch.
                backend: Backend = self if n <= most else self._numpy
                out[first : first + n] = backend.patches(part, failures)
                first, begin = first + n, end
        return out


def _placed(canvas: UInt32[np.ndarray, "pixels"], items: Iterable[Item], patch_size: int) -> Iterator[_Placed]:
    """Every frame with its part of the canvas."""
    at = 0
    for item in items:
        _, rows, columns = item.plan.grid_thw
        pixels = rows * columns * patch_size**2
        for frame in item.medium.frames:
            yield item, frame, FrameCanvas(canvas[at : at + pixels], rows, columns, patch_size)
            at += pixels


def _groups(frames: Iterable[_Placed]) -> Iterator[list[_Placed]]:
    """Runs of frames that are worth a task."""
    group, pixels = [], 0
    for placed in frames:
        group.append(placed)
        width, height = placed[1].size
        pixels += width * height
        if pixels >= _TASK_PIXELS:
            yield group
            group, pixels = [], 0
    if group:
        yield group
