"""Every case: what is run, on what, and what must come out of it. Each returns rows of name -> milliseconds."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
from PIL import Image

import kimi_jax_prep as kjp
from benchmarks.measure import check_equal, median_ms, rss_mb
from benchmarks.peers import all_peers, checkpoint_arithmetic, numba_kernel
from benchmarks.pictures import jpeg, noise, photo_like
from kimi_jax_prep import reference
from kimi_jax_prep.engine.backends import Target
from kimi_jax_prep.engine.buffers import Pool
from kimi_jax_prep.engine.canvas import FrameCanvas
from kimi_jax_prep.engine.frames import FrameRenderer
from kimi_jax_prep.engine.runtime import Runtime, runtime
from kimi_jax_prep.host.pixels import Pixels
from kimi_jax_prep.plan import patch_capacity

Row = dict[str, float]
OURS = "kimi_jax_prep"


def warm(prep: kjp.Preprocessor, media: list[Any]) -> None:
    """Everything compiled and in memory that this batch needs."""
    for _ in range(3):
        prep(media)
        prep.wait_until_compiled()


def side_by_side(images: list[Image.Image], *, turns: int = 9) -> Row:
    """Ours and every peer, PIL images in, a NumPy array out."""
    want = checkpoint_arithmetic(images)
    prep = kjp.Preprocessor()
    warm(prep, images)
    check_equal(prep(images).pixel_values, want, OURS)
    row = {OURS: median_ms(lambda: prep(images).pixel_values, turns=turns)}
    for name, (peer, exact) in all_peers().items():
        got = peer(images)
        if exact:
            check_equal(got, want, name)
        elif got.shape != want.shape:
            raise AssertionError(f"{name}: shape {got.shape} instead of {want.shape}")
        del got
        row[name] = median_ms(partial(peer, images), turns=turns if row[OURS] < 20 else 5, warm=1)
    return row


def fused_stage() -> Row:
    """Pad + look-up + patchify of eight 1795x1795 byte frames that lie in memory, into a buffer that is used again."""
    frames = np.stack([np.asarray(noise(1795, 1795, seed=s)) for s in range(8)])
    plan = kjp.plan_image(width=1795, height=1795, config=kjp.KIMI_K25)
    lut = kjp.normalize_lut(kjp.KIMI_K25)
    n, side = 8 * plan.num_patches, 1795 + plan.pad_right

    # The pure function, for frames of one size.
    patchify = jax.jit(lambda frames, old: kjp.patchify(frames, lut), donate_argnums=1, keep_unused=True)  # noqa: ARG005
    bytes_ = jax.numpy.asarray(frames)
    held = [jax.numpy.zeros((n, 3, 14, 14), "float32")]

    def pure() -> None:
        held[0] = patchify(bytes_, held[0])
        held[0].block_until_ready()

    # The engine's last launch, for frames of any sizes; its capacity is up to a quarter larger than the batch.
    target = Target(kjp.KIMI_K25, "float32")
    spec = target.program(patch_capacity(n))
    program = _here().programs.wait(spec)
    canvas = np.zeros(spec.capacity * 14 * 14, np.uint32)
    words = np.zeros((1795, 1795, 4), np.uint8)
    for i, frame in enumerate(frames):
        words[..., :3] = frame
        part = canvas[i * side * side : (i + 1) * side * side]
        FrameCanvas(part, side // 14, side // 14, 14).write(0, 0, words.view(np.uint32)[..., 0])
    on_device, table = jax.numpy.asarray(canvas), jax.numpy.asarray(target.table)
    kept = [jax.numpy.zeros((spec.capacity, 3, 14 * 14), "float32")]

    def engine() -> None:
        kept[0] = program(on_device, table, kept[0])
        kept[0].block_until_ready()

    fill, out = numba_kernel(), np.empty((n, 3, 14, 14), np.float32)
    fill(frames, side, side, lut, 14, out)
    pure()
    engine()
    check_equal(np.asarray(held[0]), out, "patchify")
    check_equal(np.asarray(kept[0])[:n].reshape(out.shape), out, "engine's launch")
    other = np.empty_like(out)
    return {
        OURS: median_ms(pure),
        f"engine's launch of {spec.capacity / n:.2f} times as many": median_ms(engine),
        "numba kernel": median_ms(lambda: fill(frames, side, side, lut, 14, out), turns=5),
        "NumPy's copy of the output": median_ms(lambda: np.copyto(other, out)),
    }


def _here() -> Runtime:
    here = runtime()
    assert here is not None
    return here


def resize(width: int, height: int, new_width: int, new_height: int) -> Row:
    """One RGB picture: the engine's tiles, the pure function, Pillow, and Pillow in two threads."""
    image = noise(width, height, seed=1)
    size = (new_width, new_height)
    renderer = FrameRenderer(kjp.KIMI_K25, _here(), Pool(1 << 28))
    plan = renderer.plan_resize(image.size, size, channels=3)
    assert plan is not None
    programs = {s: _here().programs.wait(s) for s in (plan.across, plan.down) if s is not None}
    out = np.zeros((new_height, new_width), np.uint32)

    def write(top: int, left: int, pixels: np.ndarray) -> None:
        out[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels

    with ThreadPoolExecutor(2) as pool:

        def tiles() -> None:
            for task in [pool.submit(task) for task in renderer.tasks(Pixels(image), plan, programs, None, write)]:
                task.result()

        def halves() -> list[Image.Image]:
            # Halves of the output, each from the rows that it needs and a margin: what a user would write.
            cut = new_height // 2
            boxes = [(0, 0, width, height * cut / new_height), (0, height * cut / new_height, width, height)]
            sizes = [(new_width, cut), (new_width, new_height - cut)]
            bicubic = Image.Resampling.BICUBIC
            work = [pool.submit(image.resize, s, bicubic, b) for s, b in zip(sizes, boxes, strict=True)]
            return [half.result() for half in work]

        want = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
        tiles()
        check_equal(np.ascontiguousarray(out.view(np.uint8).reshape(new_height, new_width, 4)[..., :3]), want, "tiles")
        frame = jax.numpy.asarray(np.asarray(image))
        pure = partial(kjp.resize_bicubic, frame, height=new_height, width=new_width)
        check_equal(np.asarray(pure()), want, "resize_bicubic")
        return {
            OURS: median_ms(tiles),
            "resize_bicubic (pure function)": median_ms(lambda: pure().block_until_ready()),
            "Pillow": median_ms(lambda: image.resize(size, Image.Resampling.BICUBIC)),
            "Pillow, two threads": median_ms(halves),
        }


def dtypes(side: int) -> Row:
    """Eight square pictures in each dtype; up to 1792 pixels a side need no resize."""
    images = [noise(side, side, seed=s) for s in range(8)]
    row = {}
    for dtype in ("float32", "bfloat16", "float16", "uint8"):
        prep = kjp.Preprocessor(dtype=dtype)
        warm(prep, images)
        row[dtype] = median_ms(lambda prep=prep: prep(images).pixel_values)
    return row


def against_reference(media: list[Any], what: str) -> Row:
    """Ours and the reference on media that the peers do not take."""
    prep = kjp.Preprocessor()
    warm(prep, media)
    check_equal(prep(media).pixel_values, reference.preprocess(media, kjp.KIMI_K25).pixel_values, what)
    return {
        OURS: median_ms(lambda: prep(media).pixel_values),
        "checkpoint's arithmetic": median_ms(lambda: reference.preprocess(media, kjp.KIMI_K25), turns=3, warm=0),
    }


def video() -> Row:
    """64 frames of 1920x1080 as 16 chunks."""
    frames = [noise(1920, 1080, seed=s) for s in range(8)] * 8
    chunks = [{"type": "video_chunk", "video_chunk": frames[i : i + 4]} for i in range(0, 64, 4)]
    return against_reference(chunks, "video")


def jpegs() -> Row:
    """Eight photo-like 2048x2048 JPEGs from bytes; both decode with Pillow."""
    return against_reference([jpeg(photo_like(2048, 2048, seed=100 * s)) for s in range(8)], "JPEG")


STREAM = """
import sys, time
started = time.perf_counter()
import numpy as np
import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from benchmarks.pictures import noise

sizes = np.random.default_rng(7).integers(200, 4001, (300, 2)).tolist()
prep = kjp.Preprocessor() if sys.argv[1] == "ours" else None
run = prep if prep is not None else lambda medias: reference.preprocess(medias, kjp.KIMI_K25)
spent = [time.perf_counter() - started]
for turn in range(int(sys.argv[2])):
    total = 0.0
    for i, (width, height) in enumerate(sizes):
        picture = noise(width, height, seed=i)
        picture.load()
        start = time.perf_counter()
        run([picture])
        total += time.perf_counter() - start
    spent.append(total)
    if prep is not None:
        prep.wait_until_compiled()
print(*spent, len(prep.compiled_programs) if prep is not None else 0)
"""


def stream() -> Row:
    """300 pictures one by one, no size twice, from process start; then the same process again, now warm."""

    def spent(who: str, turns: int) -> list[float]:
        done = subprocess.run(
            [sys.executable, "-c", STREAM, who, str(turns)], capture_output=True, text=True, check=True
        )
        return [float(x) for x in done.stdout.split()]

    started, cold, _, warm_, programs = spent("ours", 3)
    reference_started, reference_cold, _ = spent("reference", 1)
    return {
        OURS + ", cold": (started + cold) * 1e3,
        OURS + ", warm": warm_ * 1e3,
        "checkpoint's arithmetic": (reference_started + reference_cold) * 1e3,
        "compiled programs": programs,
    }


def scaling() -> Row:
    """Milliseconds per megapixel of batches of 2048x2048 pictures."""
    images = [noise(2048, 2048, seed=s) for s in range(8)]
    row = {}
    for count in (1, 2, 4, 8, 16, 32, 64):
        batch = [images[i % 8] for i in range(count)]
        prep = kjp.Preprocessor(max_cached_bytes=8 << 30)
        warm(prep, batch)
        row[str(count)] = median_ms(lambda prep=prep, batch=batch: prep(batch).pixel_values, turns=5) / (
            count * 2048 * 2048 / 1e6
        )
    return row


def memory() -> Row:
    """MB held by the process after 100 and after 1,000 calls with pictures of mixed sizes."""
    prep = kjp.Preprocessor()
    rng = np.random.default_rng(3)
    held = {}
    for call in range(1, 1001):
        width, height = rng.integers(30, 1500, 2).tolist()
        prep([noise(width, height, seed=call)])
        if call in (100, 300, 1000):
            held[f"MB after {call} calls"] = rss_mb()
    return held


def latency_of_new_sizes() -> Row:
    """Worst and median milliseconds of 300 sizes that a warm process has not met."""
    prep = kjp.Preprocessor()
    prep.warmup()
    rng = np.random.default_rng(4)
    times = []
    for i in range(300):
        width, height = rng.integers(30, 1500, 2).tolist()
        picture = noise(width, height, seed=i)
        start = time.perf_counter()
        prep([picture])
        times.append((time.perf_counter() - start) * 1e3)
    return {"median": float(np.median(times)), "worst": max(times)}


PEAK = """
import sys
import numpy as np
import kimi_jax_prep as kjp
from benchmarks.pictures import noise

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024 / 1e6

picture = noise(2048, 2048, seed=1)
if sys.argv[1] == "engine":
    prep = kjp.Preprocessor(max_cached_bytes=0)
    prep.warmup()
    prep([noise(1900, 1800, seed=2)])
    # What the warm process took once and gave back must not hide what this picture needs.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = peak()
    prep([picture])
else:
    import jax
    frame = jax.numpy.asarray(np.asarray(picture))
    resize = jax.jit(lambda x: kjp.resize_bicubic(x, height=1795, width=1795)).lower(frame).compile()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = peak()
    resize(frame).block_until_ready()
print(peak() - before)
"""


def peak_memory() -> Row:
    """MB that one 2048x2048 picture (12.6 MB) takes at the most beyond what the process held; output included."""

    def peak(who: str) -> float:
        done = subprocess.run([sys.executable, "-c", PEAK, who], capture_output=True, text=True, check=True)
        return float(done.stdout)

    return {"MB, resize_bicubic (output 9.7)": peak("pure"), "MB, engine (output 39.7)": peak("engine")}


CASES: dict[str, Callable[[], Row]] = {
    "eight 2048x2048": lambda: side_by_side([noise(2048, 2048, seed=s) for s in range(8)]),
    "one 224x224": lambda: side_by_side([noise(224, 224, seed=1)], turns=99),
    "one 640x480": lambda: side_by_side([noise(640, 480, seed=1)], turns=49),
    "one 1280x720": lambda: side_by_side([noise(1280, 720, seed=1)], turns=29),
    "one 1792x1792": lambda: side_by_side([noise(1792, 1792, seed=1)], turns=15),
    "one 4032x3024": lambda: side_by_side([noise(4032, 3024, seed=1)]),
    "fused stage": fused_stage,
    "resize 2048x2048 to 1795x1795": lambda: resize(2048, 2048, 1795, 1795),
    "resize 1920x1080 to 1196x672": lambda: resize(1920, 1080, 1196, 672),
    "resize 4032x3024 to 2073x1554": lambda: resize(4032, 3024, 2073, 1554),
    "eight 2048x2048, dtypes": lambda: dtypes(2048),
    "eight 1792x1792 (no resize), dtypes": lambda: dtypes(1792),
    "64 video frames 1920x1080": video,
    "eight 2048x2048 JPEGs": jpegs,
    "300 sizes, one by one": stream,
    "new sizes in a warm process": latency_of_new_sizes,
    "milliseconds per megapixel by batch": scaling,
    "peak memory": peak_memory,
    "memory": memory,
}
