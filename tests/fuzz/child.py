"""The process that meets the broken pictures, as a server would: one `Preprocessor` per rules, kept for all cases.

It writes one line of JSON before each case and one after it, so that whoever reads them knows which case ended it.
"""

import ctypes
import faulthandler
import gc
import hashlib
import io
import itertools
import json
import math
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any

from cases import Case, case
from PIL import Image

import kimi_jax_prep as kjp

RULES = {"K2.5": kjp.KIMI_K25, "K3": kjp.KIMI_K3}
# As a server with little memory would say.
MOST_CACHED = 128 << 20
LARGEST = 1 << 24
_BESIDE = Image.new("RGB", (30, 20), (1, 2, 3))


def main(seed: int, numbers: range, max_pixels: int) -> None:
    """Run the cases of these numbers. The first tenth warms up: bounded caches fill, threads get their memory."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    preprocessors = {
        rules: kjp.Preprocessor(config, max_pixels=max_pixels, max_cached_bytes=MOST_CACHED, formats=None)
        for rules, config in RULES.items()
    }
    for prep in preprocessors.values():
        warm_up(prep)
    for number in numbers:
        if number == numbers[len(numbers) // 10]:
            _say(warm=True, **needed(preprocessors.values()))
        _say(start=number)
        this = case(seed, number)
        report = run(this, preprocessors[this.rules])
        _say(done=number, **report, **memory(preprocessors.values()))
    _say(end=True, **needed(preprocessors.values()))


def warm_up(prep: kjp.Preprocessor) -> None:
    """Compile all, and meet the largest pictures that will be let in: allocators keep what these took."""
    prep.warmup()
    side = min(math.isqrt(prep.options.max_pixels or LARGEST), math.isqrt(LARGEST))
    stream = io.BytesIO()
    Image.new("RGBA", (side, side), (1, 2, 3, 4)).save(stream, "PNG")
    for _ in range(2):
        prep([stream.getvalue()])
        prep([{"type": "video_chunk", "video_chunk": [stream.getvalue()] * 3}])


def run(this: Case, prep: kjp.Preprocessor) -> dict[str, Any]:
    """What came of one case: its outcome, a digest of a result, seconds, and what is wrong."""
    media, before = _media(this), _media(this)
    beside = [_BESIDE] if this.options.get("on_error") == "skip" else []
    medias = [media, *beside]
    outcome, digest, wrong, patches = "result", None, [], 0
    begin = time.perf_counter()
    try:
        batch = prep(medias, **this.options)
    except kjp.PrepError as err:
        outcome = f"{type(err).__name__} from {type(_first_cause(err)).__name__}"
    except BaseException as err:
        outcome = type(err).__name__
        wrong.append(f"{type(err).__name__} instead of a PrepError: {err}")
        if isinstance(err, KeyboardInterrupt):
            raise
    else:
        seconds = time.perf_counter() - begin
        if batch.failures:
            outcome = f"skipped, {type(batch.failures[0].error).__name__}"
            if [f.index for f in batch.failures] != [0] or not isinstance(batch.failures[0].error, kjp.PrepError):
                wrong.append(f"failures are {batch.failures!r}")
        elif beside:
            outcome = "result beside another"
        if beside and (batch.sources[-1:] != (1,) or batch.grid_thws[-1].tolist() != [1, 2, 4]):
            wrong.append(f"the picture beside it has the grid {batch.grid_thws[-1:].tolist()}")
        patches = len(batch.pixel_values)
        digest = digest_of(batch)
    if digest is None:
        seconds = time.perf_counter() - begin
    if len(medias) != 1 + len(beside) or medias[0] is not media or not _same(media, before):
        wrong.append("the caller's objects changed")
    return {"outcome": outcome, "digest": digest, "seconds": seconds, "patches": patches, "wrong": wrong}


def digest_of(batch: kjp.PatchBatch) -> str:
    """Stands for dtype, shape, grids and every bit of a result."""
    grids, values = batch.grid_thws, batch.pixel_values
    content = hashlib.sha256(memoryview(values).cast("B") if values.size else b"").hexdigest()
    return f"{values.dtype} {values.shape} {grids.dtype} {grids.tolist()} {content}"


def _media(this: Case) -> Any:
    """The medium in its form; made anew at every call."""
    file = io.BytesIO(this.data)
    file.seek(this.position)
    return {
        "bytes": this.data,
        "bytearray": bytearray(this.data),
        "memoryview": memoryview(this.data),
        "file": file,
        "data URL": this.text,
        "image dict": {"type": "image", "image": bytearray(this.data)},
        "chunk dict": {"type": "video_chunk", "video_chunk": [this.data, file], "prompt": "a"},
        "video dict": {"type": "video", "video": [file, this.data, this.text], "fps": 2.0},
    }[this.form]


def _same(a: Any, b: Any) -> bool:
    """Equal in type and content; of files their bytes and position."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(itertools.starmap(_same, zip(a, b, strict=True)))
    if isinstance(a, io.BytesIO):
        return not a.closed and (a.tell(), a.getvalue()) == (b.tell(), b.getvalue())
    return a == b


def _first_cause(err: BaseException) -> BaseException:
    while err.__cause__ is not None:
        err = err.__cause__
    return err


def memory(preprocessors: Iterable[kjp.Preprocessor]) -> dict[str, int]:
    """Bytes that this process has in memory, now and at most, and those that are kept for the next call."""
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    now, most = (int(lines[key].split()[0]) << 10 for key in ("VmRSS", "VmHWM"))
    return {"resident": now, "peak": most, "cached": sum(prep.cached_bytes for prep in preprocessors)}


def needed(preprocessors: Iterable[kjp.Preprocessor]) -> dict[str, int]:
    """The same when all is given back that nobody uses: results and canvases, cycles, and what malloc kept of the
    largest picture. The rest is what a leak would add to."""
    preprocessors = list(preprocessors)
    for prep in preprocessors:
        prep.clear_cache()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory(preprocessors)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    seed, first, stop, most = map(int, sys.argv[1:])
    main(seed, range(first, stop), most)
