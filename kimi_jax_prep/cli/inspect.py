"""`kimi-jax-prep inspect`: a picture or a page that shows what the model sees."""

from pathlib import Path
from typing import Annotated

import typer

from kimi_jax_prep.cli.inputs import ConfigOption, JsonOption, VerboseOption, is_video, medium, naming, read_config
from kimi_jax_prep.cli.output import print_json, show_lines, whole_file
from kimi_jax_prep.errors import PrepError


def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Images and videos; --out takes one.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw the grid: .png, .jpg, .webp. A video gives a contact sheet."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one page to explore in a browser, offline.")
    ] = None,
    config: ConfigOption = "k2.5",
    json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 -- `run_command` reads it
) -> None:
    """Show what the model sees: resized and padded pictures with their patch and token grid."""
    media_proc_cfg = read_config(config)
    _check(files, out, html)

    from kimi_jax_prep.engine.preprocessor import Preprocessor
    from kimi_jax_prep.view.picture import caption, contact_sheet, visualize

    prep = Preprocessor(media_proc_cfg, dtype="uint8", backend="numpy")
    with naming(files):
        batch = prep([medium(name) for name in files])
    if out is not None:
        if is_video(files[0]):
            picture = contact_sheet(batch, range(len(batch)), config=media_proc_cfg, title=Path(files[0]).name)
        else:
            picture = visualize(batch, 0, config=media_proc_cfg)
        with whole_file(out) as beside:
            picture.save(beside)
    if html is not None:
        from kimi_jax_prep.view.page import write_page

        with whole_file(html) as beside:
            write_page(beside, batch, [Path(files[k]).name for k in batch.sources], config=media_proc_cfg)
    captions = [caption(batch, i, media_proc_cfg) for i in range(len(batch))]
    times = [(prompt or "").partition("<|")[0] for prompt in batch.prompts]
    names = [f"{files[k]} {time}".rstrip() for k, time in zip(batch.sources, times, strict=True)]
    written = [str(path) for path in (out, html) if path is not None]
    if json:
        media = [
            {"file": name, "caption": text.replace("\n", "; ")} for name, text in zip(names, captions, strict=True)
        ]
        print_json({"media": media, "written": written})
    else:
        for name, text in zip(names, captions, strict=True):
            show_lines([name], "bold")
            show_lines([f"  {line}" for line in text.split("\n")])
        show_lines([f"written  {path}" for path in written])


def _check(files: list[str], out: Path | None, html: Path | None) -> None:
    """Refuse before the work what could not be written after it."""
    if out is None and html is None:
        raise PrepError("inspect needs --out PICTURE or --html PAGE.")
    if out is not None and len(files) > 1:
        raise PrepError(f"--out draws one file; got {len(files)}. Use --html for several.")
    if out is not None and out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise PrepError(f"--out is {str(out)!r}; expected a name that ends in .png, .jpg or .webp.")
    for option, path in (("--out", out), ("--html", html)):
        if path is not None and not path.parent.is_dir():
            raise PrepError(f"{option} is {str(path)!r}, but the folder {str(path.parent)!r} does not exist.")
