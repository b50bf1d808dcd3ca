"""Pictures whose reading preprocesses other pictures, and signal handlers that raise in the middle of it."""

import contextlib
import io
import linecache
import subprocess
import sys
import threading

import numpy as np
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.media import locks


def noise(seed: int, side: int = 700) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8))


def lazy(image: Image.Image, before_reading=None) -> Image.Image:
    """An image of a file whose kind is not known, so that it waits for all others of its kind."""
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    file = File(stream.getvalue())
    opened = Image.open(file)
    file.before_reading = before_reading
    return opened


class File(io.BytesIO):
    before_reading = None

    def read(self, size=-1):
        hook, self.before_reading = self.before_reading, None
        if hook is not None:
            hook()
        return super().read(size)


def finished(work) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_a_file_whose_reading_preprocesses_many_others_does_not_wait_for_itself():
    others = [noise(seed) for seed in range(6)]
    prep = kjp.Preprocessor(num_threads=4)
    inner, outer = [], []
    picture = lazy(noise(9), lambda: inner.append(prep([lazy(other) for other in others]).pixel_values))
    assert finished(lambda: outer.append(prep([picture]).pixel_values))
    assert_bit_equal(inner[0], reference.preprocess(others, kjp.KIMI_K25).pixel_values, what="the nested call")
    assert_bit_equal(outer[0], reference.preprocess([noise(9)], kjp.KIMI_K25).pixel_values, what="the outer call")


_HANDLER = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import kimi_jax_prep as kjp
from media.test_locks import lazy, noise

prep, inner = kjp.Preprocessor(num_threads=4), []
signal.signal(signal.SIGALRM, lambda *_: inner.append(prep([lazy(noise(seed)) for seed in range(6)])))
prep([lazy(noise(9), lambda: os.kill(os.getpid(), signal.SIGALRM))])
assert len(inner[0]) == 6
"""


def test_a_signal_handler_that_preprocesses_while_a_file_is_read_does_not_wait(request):
    script = _HANDLER.format(tests=str(request.config.rootpath / "tests"))
    subprocess.run([sys.executable, "-c", script], check=True, timeout=90)


def test_a_limit_holds_before_a_nested_call_decodes():
    errors = []

    def nested():
        try:
            kjp.preprocess([lazy(noise(1))], max_pixels=1000)
        except kjp.MediaError as err:
            errors.append(str(err))

    kjp.preprocess([lazy(noise(9), nested)])
    assert len(errors) == 1
    assert "max_pixels" in errors[0]


class TimeIsUp(Exception):
    pass


def raises_in_line(image, line: int) -> bool:
    """Raise in the n-th line with a call that runs in the function that holds the lock; False if it has fewer."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_name != "_turn" or frame.f_code.co_filename != locks.__file__:
            return None
        # Python runs signal handlers after calls and where a generator goes on, not at a bare `with` or `try`.
        code = linecache.getline(locks.__file__, frame.f_lineno)
        if event == "line" and ("(" in code or "yield" in code):
            left -= 1
            if left == -1:
                raise TimeIsUp
        return trace

    before = sys.gettrace()
    with contextlib.suppress(Exception):  # TimeIsUp, or what the type checker makes of it
        sys.settrace(trace)
        try:
            with locks.reading(image):
                pass
        finally:
            sys.settrace(before)
    return left < 0


def test_wherever_a_signal_handler_raises_no_lock_stays_taken():
    image, line = lazy(noise(0, 20)), 0

    def read():
        with locks.reading(image):
            pass

    while raises_in_line(image, line):
        assert finished(read), line
        line += 1
    assert line >= 5
