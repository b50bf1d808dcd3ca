"""`python tests/fuzz/run.py` gives 50,000 broken pictures to the library and says what came of them; see README.md.

This process runs no picture of its own making through the library: it starts the one that does, reads its lines, and
judges results by the reference. If the other one crashes or hangs, its case is known, and the next one goes on.
"""

import argparse
import collections
import io
import json
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cases import Case, case
from child import LARGEST, RULES, digest_of
from PIL import Image
from tqdm import tqdm

from kimi_jax_prep import reference

MOST_SECONDS = 2.0
MOST_GROWTH = 100 << 20
_HANG_SECONDS = 120
_MB = 1 << 20


class Summary:
    """What came of the cases so far, and what is wrong.

    Args:
      seed: of the cases.
      every: so manieth result, and so manieth error, is judged by the reference.
    """

    def __init__(self, seed: int, *, every: int) -> None:
        self.violations: list[str] = []
        self._seed = seed
        self._every = every
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._seconds: list[tuple[float, int]] = []
        self._judged = self._results = self._refused = 0
        self._warm: dict[str, int] | None = None
        self._end: dict[str, int] | None = None
        self._last: dict[str, int] = {}

    def note(self, report: dict[str, Any]) -> None:
        """One case that ended, or memory after the first tenth and after all."""
        memory = {key: report[key] for key in ("resident", "peak")}
        if "warm" in report:
            self._warm = memory
            return
        if "end" in report:
            self._end = memory
            return
        self._last = memory
        number = report["done"]
        self._outcomes[report["outcome"]] += 1
        for wrong in report["wrong"]:
            self.violation(wrong, number)
        self._seconds.append((report["seconds"], number))
        if report["seconds"] > MOST_SECONDS:
            self.violation(f"took {report['seconds']:.1f} s", number)
        this = case(self._seed, number)
        if this.is_plain:
            self._judge(this, report["digest"])

    def died(self, number: int | None, why: str) -> None:
        """The other process ended in the middle of a case."""
        self._outcomes["crash or hang"] += 1
        self.violation(why, number)
        self._warm = None

    def violation(self, what: str, number: int | None = None) -> None:
        about = "" if number is None else f"case {number}, {case(self._seed, number).story}: "
        self.violations.append(about + what)
        tqdm.write(self.violations[-1])

    def close(self) -> str:
        """The whole in words, and the checks that take all cases."""
        lines = [f"{count:8} {outcome}" for outcome, count in self._outcomes.most_common()]
        lines.append(f"{self._judged:8} of them judged by the reference")
        slowest = sorted(self._seconds, reverse=True)[:10]
        lines.append("slowest: " + ", ".join(f"{seconds:.2f} s (case {number})" for seconds, number in slowest))
        if self._warm and self._end:
            growth = self._end["resident"] - self._warm["resident"]
            lines.append(
                f"memory in use: {growth / _MB:+.0f} MB to {self._end['resident'] / _MB:.0f} MB; with what is kept for "
                f"reuse {self._last['resident'] / _MB:.0f} MB at the end, peak {self._last['peak'] / _MB:.0f} MB"
            )
            if growth > MOST_GROWTH:
                self.violation(f"memory in use grew by {growth / _MB:.0f} MB")
        return "\n".join([*lines, f"{len(self.violations)} violations", *self.violations])

    def _judge(self, this: Case, digest: str | None) -> None:
        if digest is None:
            self._refused += 1
            if self._refused % self._every == 0:
                self._judged += 1
                if _by_reference(this) is not None and _format(this) != "EPS":
                    self.violation("is refused, but the reference takes it", this.number)
            return
        self._results += 1
        if self._results % self._every == 0:
            self._judged += 1
            want = _by_reference(this)
            if want not in (None, digest):
                self.violation(f"differs from the reference:\n  {digest}\n  {want}", this.number)


def _by_reference(this: Case) -> str | None:
    """The digest of the reference's result, or None if it takes no such bytes."""
    media: Any = this.data
    if this.form == "chunk dict":
        media = {"type": "video_chunk", "video_chunk": [this.data, this.data]}
    try:
        return digest_of(reference.preprocess([media], RULES[this.rules]))
    except Exception:  # whatever Pillow's readers raise for broken data: the reference does not collect them
        return None


def _format(this: Case) -> str | None:
    return Image.open(io.BytesIO(this.data)).format


def lines_of(command: list[str]) -> Iterator[dict[str, Any] | str]:
    """What the other process says, and at last, if it did not end well, how it ended."""
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        alarm = threading.Timer(_HANG_SECONDS, process.kill)
        try:
            alarm.start()
            for line in process.stdout:
                alarm.cancel()
                yield json.loads(line)
                alarm = threading.Timer(_HANG_SECONDS, process.kill)
                alarm.start()
        except BaseException:  # whoever reads has stopped
            process.kill()
            raise
        finally:
            alarm.cancel()
        code = process.wait()
        if code:
            stderr.seek(0)
            yield f"the process ended with {code}; {stderr.read()[-2000:]}"


def main() -> int:
    """Returns 1 if anything is wrong, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50_000, help="cases (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases (%(default)s)")
    parser.add_argument("--only", type=int, help="run the case of this number again, and write its bytes to a file")
    parser.add_argument("--every", type=int, default=20, help="so manieth case is judged (%(default)s)")
    parser.add_argument("--max-pixels", type=int, default=LARGEST, help="that are let in (%(default)s)")
    args = parser.parse_args()
    first, stop = (0, args.count) if args.only is None else (args.only, args.only + 1)
    if args.only is not None:
        args.every = 1
        this = case(args.seed, args.only)
        file = Path(tempfile.gettempdir()) / f"kimi_jax_prep-{args.seed}-{args.only}.bin"
        file.write_bytes(this.data)
        print(f"{this.story}; as {this.form}, {this.rules}, {this.options}; {len(this.data)} bytes in {file}")
    warnings.simplefilter("ignore")
    summary = Summary(args.seed, every=args.every)
    child = str(Path(__file__).parent / "child.py")
    with tqdm(total=stop - first, unit="case") as bar:
        while first < stop:
            running = None
            for line in lines_of([sys.executable, child, *map(str, (args.seed, first, stop, args.max_pixels))]):
                if isinstance(line, str):
                    summary.died(running, line)
                    if running is None:  # it did not even start
                        first = stop
                elif "start" in line:
                    running = line["start"]
                    first = running + 1
                    bar.update()
                else:
                    summary.note(line)
    print(summary.close())
    return 1 if summary.violations else 0


if __name__ == "__main__":
    sys.exit(main())
