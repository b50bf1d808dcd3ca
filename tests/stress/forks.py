"""Forks at random moments from a busy parent: `python tests/stress/forks.py --count 200`.

Threads of the parent launch, compile, decode, allocate and import while it forks. Every child answers with the bits of
the reference within ten seconds, or the run fails.
"""

import argparse
import hashlib
import importlib
import io
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

import jax
import numpy as np
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference

SECONDS = 10
warnings.simplefilter("ignore")  # every child is told about forks, and JAX warns as well


def jpeg(rng: np.random.Generator, width: int, height: int) -> bytes:
    """Encoded noise."""
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def busy(prep: kjp.Preprocessor, pictures: list[bytes]) -> list[Callable[[], None]]:
    """What the parent's threads do, over and over."""
    sizes = iter(range(40, 10**6))

    def compile_something() -> None:
        n = next(sizes)
        jax.jit(lambda x: x * n + jax.numpy.arange(n)).lower(jax.ShapeDtypeStruct((n,), np.float32)).compile()

    def compile_ours() -> None:
        kjp.Preprocessor(dtype=random.choice(["float16", "bfloat16", "uint8"]))(pictures[:1])

    def decode() -> None:
        Image.open(io.BytesIO(random.choice(pictures))).load()

    def allocate() -> None:
        np.empty(random.randrange(1 << 24), np.uint8)[:: 1 << 12] = 1

    def import_something() -> None:
        # A module that takes a while to load, loaded anew each time.
        for name in ("decimal", "_pydecimal", "kimi_jax_prep.text.rows", "PIL.TiffImagePlugin"):
            sys.modules.pop(name, None)
            importlib.import_module(name)

    return [lambda: prep(pictures) and None, compile_something, compile_ours, decode, allocate, import_something]


def in_child(prep: kjp.Preprocessor, medias: list[bytes], want: str) -> int:
    """Fork, answer in the child; its wait status, or -1 if it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            patches = random.choice([prep, kjp.Preprocessor()])(medias).pixel_values
            status = 0 if hashlib.sha256(patches.tobytes()).hexdigest() == want else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


def main(count: int, seed: int) -> int:
    """The number of children that did not answer right."""
    random.seed(seed)
    rng = np.random.default_rng(seed)
    pictures = [jpeg(rng, *size) for size in ((300, 200), (640, 480), (50, 900))]
    medias = pictures[:2]
    want = hashlib.sha256(reference.preprocess(medias, kjp.KIMI_K25).pixel_values.tobytes()).hexdigest()
    prep = kjp.Preprocessor(num_threads=2)
    prep.warmup(max_patches=4000, resize=False)
    stop = threading.Event()

    def work(task: Callable[[], None]) -> None:
        while not stop.is_set():
            task()

    threads = [threading.Thread(target=work, args=(task,), daemon=True) for task in busy(prep, pictures)]
    for thread in threads:
        thread.start()
    bad = 0
    for i in range(count):
        time.sleep(random.random() * 0.05)
        status = in_child(prep, medias, want)
        if status:
            bad += 1
            print(f"child {i}: {'hangs' if status == -1 else f'status {status}'}", flush=True)
    stop.set()
    for thread in threads:
        thread.join(30)
    print(f"{count} forks, {bad} bad")
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(1 if main(arguments.count, arguments.seed) else 0)
