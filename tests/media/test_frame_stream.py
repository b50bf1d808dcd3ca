"""Frames of video files, decoded as they are asked for; and rates that a container does not state."""

import io
import random
import subprocess
import sys
import textwrap
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from bits import assert_bit_equal
from numbered_video import HEIGHT, WIDTH, number, numbered, video

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.media.frame_stream import FrameStream, _Decoding
from kimi_jax_prep.media.video_file import VideoFile

DATA = video(60, g="12")


@pytest.mark.parametrize("threads", [1, 4])
def test_every_frame_is_right_whoever_asks_in_which_order(threads):
    indices = list(range(0, 60, 2))
    stream = FrameStream(VideoFile(DATA), indices, progress=False)
    order = list(indices)
    if threads == 1:
        random.Random(0).shuffle(order)
    wrong: list[int] = []

    def ask(share: list[int]) -> None:
        wrong.extend(k for k in share if number(stream.frame(k)) != k)

    workers = [threading.Thread(target=ask, args=(order[i::threads],)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert [number(stream.frame(k)) for k in (4, 50, 6)] == [4, 50, 6]  # asked for again


def test_few_frames_are_in_memory_at_a_time():
    indices = list(range(60))
    stream = FrameStream(VideoFile(DATA), indices, progress=False)
    for k in indices:
        stream.frame(k)
        (decoding,) = stream._decodings.values()
        assert decoding._waiting == {}
    for k in reversed(indices):
        stream.frame(k)
        assert len(decoding._waiting) <= 16


def test_a_long_video_is_rendered_as_it_is_decoded(monkeypatch):
    """The engine asks for frames in order: those of one task at most wait for each other."""
    waiting = []
    taken = _Decoding._taken

    def counting(self, k):
        pixels = taken(self, k)
        waiting.append(len(self._waiting))
        return pixels

    monkeypatch.setattr(_Decoding, "_taken", counting)
    data = video(192, rate=2)
    prep = kjp.Preprocessor(num_threads=2)
    batch = prep([{"type": "video", "video": data}])
    assert len(batch) == 48
    assert len(waiting) == 192
    chunks = kjp.split_video_chunks(data)
    want = reference.preprocess(chunks, kjp.KIMI_K25).pixel_values
    assert_bit_equal(batch.pixel_values, want, what="a video of 192 frames")
    # A task is 2^18 pixels: 35 frames of 160 x 48.
    assert max(waiting) <= 35


def test_a_frame_that_cannot_be_decoded_ends_the_stream(monkeypatch):
    frames = VideoFile.frames

    def broken(self, indices, *, progress=False):
        yield from frames(self, [k for k in indices if k < 20], progress=progress)
        raise kjp.MediaError("frame 20 cannot be decoded")

    monkeypatch.setattr(VideoFile, "frames", broken)
    stream = FrameStream(VideoFile(DATA), list(range(60)), progress=False)
    assert [number(stream.frame(k)) for k in range(20)] == list(range(20))
    for k in (20, 21, 59, 3):
        with pytest.raises(kjp.MediaError, match="frame 20 cannot be decoded"):
            stream.frame(k)


def webm(times: list[int], *, default_duration: bool = False) -> bytes:
    """VP8 in WebM with these times in milliseconds, as a browser's MediaRecorder writes it."""
    stream = io.BytesIO()
    with av.open(stream, "w", format="webm") as out:
        track = out.add_stream("libvpx", rate=30 if default_duration else 1000)
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        track.codec_context.time_base = Fraction(1, 1000)
        for k, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(numbered(k), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            out.mux(track.encode(frame))
        out.mux(track.encode())
    return stream.getvalue()


def test_webm_as_browsers_record_it():
    rng = random.Random(1)
    times = [round(k * 1000 / 30 + rng.uniform(-6, 6)) + 10 for k in range(90)]
    file = VideoFile(webm(times))
    assert file.fps == pytest.approx(89 / ((times[-1] - times[0]) / 1000), rel=1e-9)
    chunks = kjp.split_video_chunks(webm(times))
    plans = kjp.plan_video(num_frames=90, fps=file.fps, width=WIDTH, height=HEIGHT, config=kjp.KIMI_K25)
    assert len(chunks) == len(plans) == 2  # 3 seconds, 2 frames each
    assert [chunk["prompt"] for chunk in chunks] == [plan.prompt for plan in plans]


def test_a_screen_recording_of_few_frames():
    times = [0, 2100, 3900, 6000, 8200, 9900, 12100, 14000, 15900, 18000]
    assert VideoFile(webm(times)).fps == pytest.approx(9 / 18, rel=1e-9)


@pytest.mark.parametrize(("codec", "container"), [("libx264", "mp4"), ("libx264", "matroska"), ("mpeg4", "avi")])
def test_a_rate_that_is_stated_stays(codec, container):
    assert VideoFile(video(40, codec, container, rate=25)).fps == 25


def test_progress_where_there_is_no_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert len(kjp.split_video_chunks(video(8), progress=True)) > 0


def test_frames_given_twice_are_both_handed_out():
    stream = FrameStream(VideoFile(DATA), [3, 3, 7], progress=False)
    assert [number(stream.frame(k)) for k in (3, 3, 7)] == [3, 3, 7]
    assert isinstance(stream.frame(7), np.ndarray)


def test_a_stream_that_a_parent_began_goes_on_in_a_forked_child():
    """The parent's decoder threads are not there, and its lock is taken by a thread that is not there either."""
    code = """
        import os, signal, sys, threading, time, warnings
        warnings.simplefilter("ignore")
        sys.path.insert(0, FOLDER)
        from numbered_video import number, video
        from kimi_jax_prep.media.frame_stream import FrameStream
        from kimi_jax_prep.media.video_file import VideoFile

        stream = FrameStream(VideoFile(video(60, g="12")), range(0, 60, 2), progress=False)
        assert number(stream.frame(4)) == 4
        (decoding,) = stream._decodings.values()
        taken = threading.Event()
        def hold():
            with decoding._lock:
                taken.set()
                time.sleep(60)
        threading.Thread(target=hold, daemon=True).start()
        taken.wait()
        del decoding
        pid = os.fork()
        if pid == 0:
            ok = number(stream.frame(6)) == 6 and number(stream.frame(0)) == 0
            del stream
            os._exit(0 if ok else 1)
        for _ in range(2000):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                os._exit(os.waitstatus_to_exitcode(status))
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os._exit(9)
    """
    code = textwrap.dedent(code).replace("FOLDER", repr(str(Path(__file__).parents[1])))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
