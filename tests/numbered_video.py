"""Videos whose every frame shows its number."""

import io
from fractions import Fraction

import av
import numpy as np

BITS = 10
WIDTH, HEIGHT = 16 * BITS, 48


def numbered(k: int) -> np.ndarray:
    """A picture of ten black or white columns: the bits of k."""
    columns = np.array([(k >> bit) & 1 for bit in range(BITS)], np.uint8) * 255
    return np.broadcast_to(columns.repeat(16)[None, :, None], (HEIGHT, WIDTH, 3)).copy()


def number(pixels: np.ndarray) -> int:
    """The number that a decoded picture shows."""
    means = pixels.reshape(HEIGHT, BITS, 16, 3)[:, :, 4:12].mean((0, 2, 3))
    assert ((means < 60) | (means > 195)).all(), means
    return sum(1 << bit for bit in range(BITS) if means[bit] > 128)


def video(
    count: int = 30,
    codec: str = "libx264",
    container: str = "mp4",
    rate: int = 10,
    times: list[int] | None = None,
    rotation: int | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    pix_fmt: str = "yuv420p",
    **options: str,
) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as out:
        track = out.add_stream(codec, rate=rate, options=options)
        track.width, track.height = size
        track.pix_fmt = pix_fmt
        if times is not None:
            track.codec_context.time_base = Fraction(1, 1000)
        if rotation is not None:
            track.set_display_rotation(rotation)
        for k in range(count):
            frame = av.VideoFrame.from_ndarray(numbered(k)[: size[1], : size[0]], format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[k], Fraction(1, 1000)
            out.mux(track.encode(frame))
        out.mux(track.encode())
    return stream.getvalue()
