"""Index of a video file: what its packets say without being decoded."""

import bisect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av import Packet

# No codec reorders further (16 frames in H.264 and HEVC): times that do are no order of presentation.
_REORDERED = 32


class VideoIndex:
    """What the packets say without being decoded. Packets are numbered in the order they are stored."""

    def __init__(self, packets: Iterable["Packet[Any]"], *, hides: bool) -> None:
        self.shown: list[int] = []
        """Packets that a player shows; edit lists discard others, and VP8 has frames that only serve as references."""
        self.seek_times: dict[int, tuple[int | None, int | None]] = {}
        """Of the packets that are keyframes: time of presentation, time of decoding."""
        times: list[int | None] = []
        self.num_packets = 0
        for place, packet in enumerate(packets):
            self.num_packets += 1
            if packet.is_discard or (hides and not memoryview(packet)[0] & 0x10):
                continue
            self.shown.append(place)
            times.append(packet.pts)
            if packet.is_keyframe:
                self.seek_times[place] = (packet.pts, packet.dts)
        self.num_frames = len(times)
        known = [t for t in times if t is not None]
        order = sorted(range(len(known)), key=known.__getitem__)
        self.by_time = len(set(known)) == len(times) and all(abs(k - i) <= _REORDERED for k, i in enumerate(order))
        self.times = [known[i] for i in order] if self.by_time else []
        """Of presentation, by frame. Empty where frames are counted."""
        self.places = dict(zip(known, self.shown, strict=True)) if self.by_time else {}
        self.keyframes = sorted(self.seek_times)

    def frame(self, time: int) -> int:
        """The frame of this time, or -1."""
        k = bisect.bisect_left(self.times, time)
        return k if k < len(self.times) and self.times[k] == time else -1

    def place(self, k: int) -> int:
        """The packet of frame k; where that is not known, one that lies as far back as it may."""
        return self.places[self.times[k]] if self.by_time and k >= 0 else 0

    def keyframe(self, k: int) -> int:
        """The last keyframe from which frame k can be decoded, or -1. One that is shown later comes too late."""
        i = bisect.bisect_right(self.keyframes, self.place(k))
        earlier = reversed(self.keyframes[max(0, i - _REORDERED) : i])
        return next((key for key in earlier if (self.seek_times[key][0] or 0) <= self.times[k]), -1)
