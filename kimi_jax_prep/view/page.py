"""`write_page`: one static HTML file with the pictures of a batch, to explore in a browser without a network."""

import base64
import html
import io
import json
from importlib import resources
from pathlib import Path
from typing import Any

from PIL import Image

from kimi_jax_prep.config import PRESETS, ConfigLike, MediaProcConfig, as_config
from kimi_jax_prep.view.picture import frame_bytes

# What plan.js reads.
_PLAN_KEYS = (
    "in_patch_limit",
    "patch_limit_on_one_side",
    "patch_size",
    "merge_kernel_size",
    "fixed_output_tokens",
    "in_patch_limit_each_frame",
    "in_patch_limit_video",
)


def write_page(path: Path, batch: Any, names: list[str], *, config: ConfigLike) -> None:
    """Write the page.

    Args:
      path: the HTML file, which is overwritten.
      batch: a `PatchBatch` of any dtype; all its rows are on the page.
      names: what to call the medium of each row.
      config: the config of the batch.
    """
    config = as_config(config)
    rows = []
    for i, patches in enumerate(batch.split()):
        plan = batch.plans[i]
        frames = frame_bytes(patches, plan, config)
        prompt = batch.prompts[i]
        time = f", {prompt.partition('<|')[0]}" if prompt else ""
        rows.append(
            {
                "name": f"{names[i]}{time}",
                "size": list(batch.sizes[i]) if batch.sizes else [plan.width, plan.height],
                "chunk": prompt is not None or plan.grid_thw[0] > 1,
                "frames": plan.grid_thw[0],
                "first": sum(p.num_patches for p in batch.plans[:i]),
                "pictures": [_data_url(frame) for frame in frames],
            }
        )
    models = {name: plan_values(preset) for name, preset in PRESETS.items()}
    chosen = next((name for name, preset in PRESETS.items() if preset == config), "this config")
    models[chosen] = plan_values(config)
    data = {"rows": rows, "models": models, "model": chosen, "mean": config.image_mean, "std": config.image_std}
    folder = resources.files("kimi_jax_prep.view")
    text = (folder / "page.html").read_text(encoding="utf-8")
    # In a script element, "</" could end it and "<!--" hides what follows; names are the caller's.
    literal = json.dumps(data).replace("<", "\\u003c")
    title = html.escape(names[0] if names else "no media")
    for mark, value in (
        ("{{title}}", title),
        ("/*plan.js*/", (folder / "plan.js").read_text(encoding="utf-8")),
        ("/*page.js*/", (folder / "page.js").read_text(encoding="utf-8")),
        ("/*data*/", literal),
    ):
        text = text.replace(mark, value, 1)
    path.write_text(text, encoding="utf-8")


def plan_values(config: MediaProcConfig) -> dict[str, int | None]:
    """The values of a config that sizes depend on."""
    return {key: getattr(config, key) for key in _PLAN_KEYS}


def _data_url(frame: Any) -> str:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
