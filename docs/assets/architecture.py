"""Draws architecture.svg: the way from a medium to patches. `python docs/assets/architecture.py`."""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1000, 470
W, H = 164, 76
X = [24, 220, 416, 612, 808]
Y = [56, 210, 356]
STAGES = {
    # name: column, row, title, lines, where
    "medium": (0, 0, "medium", ("PIL image, bytes, path,", "array, video, dict"), "the caller's"),
    "open": (1, 0, "open", ("headers only: size,", "mode, number of frames"), "media/"),
    "plan": (2, 0, "plan", ("sizes, grid, tokens,", "in float64"), "plan.py"),
    "decode": (3, 0, "decode", ("a frame at a time, on", "worker threads"), "media/, engine/workers.py"),
    "tiles": (2, 1, "resize in XLA", ("tiles of fixed shape,", "taps as arguments"), "engine/tiles.py"),
    "pillow": (2, 2, "resize in Pillow", ("programs not compiled yet,", "other modes, thin images"), "host/render.py"),
    "canvas": (3, 1, "canvas", ("all frames, padded,", "patch after patch"), "engine/canvas.py"),
    "normalize": (4, 1, "normalize", ("one launch: channels", "apart, table look-up"), "engine/normalize.py"),
    "numpy": (3, 2, "NumPy", ("after a fork, or without", "a CPU backend"), "host/patches.py"),
    "patches": (4, 2, "patches", ("(N, 3, 14, 14); the buffer", "returns when dropped"), "engine/buffers.py"),
}


def corner(name: str) -> tuple[int, int]:
    """Top left of a stage's box."""
    column, row, *_ = STAGES[name]
    return X[column], Y[row]


def box(name: str) -> str:
    """One stage."""
    x, y = corner(name)
    _, _, title, lines, where = STAGES[name]
    middle = x + W / 2
    text = "".join(
        f'<text class="line" x="{middle}" y="{y + 42 + 16 * i}">{escape(line)}</text>' for i, line in enumerate(lines)
    )
    return (
        f'<rect class="box" x="{x}" y="{y}" width="{W}" height="{H}" rx="8"/>'
        f'<text class="title" x="{middle}" y="{y + 23}">{escape(title)}</text>{text}'
        f'<text class="where" x="{middle}" y="{y + H + 17}">{escape(where)}</text>'
    )


def arrow(path: str) -> str:
    """One step."""
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


def right(a: str, b: str) -> str:
    """From one stage to the next on its right."""
    (xa, y), (xb, _) = corner(a), corner(b)
    return arrow(f"M{xa + W} {y + H // 2} H{xb}")


def label(x: int, y: int, text: str) -> str:
    """Words beside an arrow."""
    return f'<text class="label" x="{x}" y="{y}">{escape(text)}</text>'


def draw() -> str:
    """The whole drawing."""
    (dx, dy), (tx, ty), (px, py), (_, cy) = (corner(name) for name in ("decode", "tiles", "pillow", "canvas"))
    bus, gap = dy + H + 40, tx + W + 16
    parts = [box(name) for name in STAGES]
    parts += [right("medium", "open"), right("open", "plan"), right("plan", "decode")]
    parts += [right("tiles", "canvas"), right("canvas", "normalize"), right("numpy", "patches")]
    last_x, last_y = corner("normalize")
    parts += [
        arrow(f"M{dx + W // 2} {dy + H + 24} V{cy}"),
        label(dx + W // 2 + 52, cy - 10, "nothing to resize"),
        arrow(f"M{dx + W // 2} {bus} H{tx + W // 2} V{ty}"),
        arrow(f"M{tx + W // 2} {bus} H{tx - 24} V{py + H // 2} H{px}"),
        f'<path class="arrow" d="M{px + W} {py + H // 2} H{gap} V{cy + H // 2}"/>',
        arrow(f"M{last_x + W // 2} {last_y + H + 24} V{Y[2]}"),
    ]
    style = """
      text { font-family: system-ui, "DejaVu Sans", sans-serif; text-anchor: middle; fill: #1c2733; }
      .box { fill: #eef4fa; stroke: #35618e; stroke-width: 1.5; }
      .title { font-size: 14px; font-weight: 600; }
      .line { font-size: 11px; }
      .where { font-size: 10px; font-family: ui-monospace, "DejaVu Sans Mono", monospace; fill: #35618e; }
      .label { font-size: 10px; fill: #44525f; }
      .arrow { fill: none; stroke: #35618e; stroke-width: 1.5; }
      @media (prefers-color-scheme: dark) {
        text { fill: #e6edf3; } .box { fill: #16263a; stroke: #7fb0e0; } .where { fill: #7fb0e0; }
        .label { fill: #b8c4cf; } .arrow { stroke: #7fb0e0; }
      }"""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="A medium is opened, planned, decoded and resized onto a canvas, which is cut into patches">'
        f"<style>{style}</style>"
        '<defs><marker id="head" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#35618e"/></marker></defs>'
        f'<text class="title" x="24" y="30" style="text-anchor:start">From a medium to patches</text>{"".join(parts)}'
        "</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw())
