"""The HTML that a notebook shows for a batch."""

import base64
import html
import io
from typing import Any

from kimi_jax_prep.view.picture import visualize

_MAX_ROWS = 4  # pictures in one cell; each is embedded in the notebook's file


def batch_html(batch: Any) -> str:
    """The batch's summary and its first pictures with their grids."""
    parts = [f"<div><code>{html.escape(repr(batch))}</code></div>"]
    for i in range(min(len(batch), _MAX_ROWS)):
        buffer = io.BytesIO()
        picture = visualize(batch, i, max_side=480)
        picture.save(buffer, "PNG")
        data = base64.b64encode(buffer.getvalue()).decode()
        grid = " x ".join(map(str, batch.plans[i].grid_thw))
        alt = f"Row {i}: {grid} patches (frames, rows, columns), {batch.plans[i].num_tokens} tokens"
        parts.append(f'<img alt="{alt}" style="max-width:100%" src="data:image/png;base64,{data}">')
    if len(batch) > _MAX_ROWS:
        parts.append(f"<div>... and {len(batch) - _MAX_ROWS} more rows; use <code>batch.show(i)</code></div>")
    return "\n".join(parts)
