"""The command: what it prints and writes, its exit statuses, its one-line errors."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numbered_video import video
from PIL import Image
from safetensors.numpy import load_file

import kimi_jax_prep as kjp
from kimi_jax_prep.cli.app import run_command
from kimi_jax_prep.cli.check import compare
from kimi_jax_prep.cli.output import whole_file

ROOT = Path(__file__).parent.parent.parent
HOPPER = "docs/assets/grace_hopper.jpg"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (90, 130, 3), np.uint8)).save("a.png")
    Image.fromarray(rng.integers(0, 256, (40, 50, 4), np.uint8)).save("b.png")
    Path("clip.mp4").write_bytes(video(count=30, rate=10))
    Path("broken.png").write_bytes(b"no picture")
    return tmp_path


@pytest.fixture
def command(capsys):
    """Run the command; give its status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = run_command(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def process(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "kimi_jax_prep"]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("arguments", [["--help"], ["plan", HOPPER, "1920x1080"]])
def test_help_and_plan_start_without_jax_numpy_or_transformers(arguments):
    code = (
        "import sys; sys.argv[0] = 'kimi-jax-prep'\nfrom kimi_jax_prep.cli import main\n"
        "heavy = {'jax', 'numpy', 'transformers', 'torch'}\n"
        "try: main()\nexcept SystemExit as err: print(err.code, sorted(heavy & {*sys.modules}))"
    )
    done = process(*arguments, code=code, COLUMNS="80")
    assert done.stdout.splitlines()[-1] == "0 []"
    assert done.stderr == ""


def test_importing_needs_no_extra_and_running_without_it_names_it():
    code = (
        "import sys; sys.modules['typer'] = None; import kimi_jax_prep.cli; print('imported'); kimi_jax_prep.cli.main()"
    )
    done = process(code=code)
    assert done.stdout == "imported\n"
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'kimi-jax-prep[cli]'" in done.stderr


def test_the_readme_shows_what_the_command_prints(tmp_path, monkeypatch, command):
    text = (ROOT / "README.md").read_text()
    match = re.search(r"kimi-jax-prep (run [^\n]*) --out patches.npz\n```\n\n```\n(.*?)```", text, re.S)
    assert match
    monkeypatch.chdir(ROOT)
    out = tmp_path / "patches.npz"
    status, printed, _ = command(*match[1].split(), "--out", str(out))
    assert status == 0
    assert printed.replace(str(out), "patches.npz") == match[2]


@pytest.mark.usefixtures("files")
def test_plan_reads_headers_and_sums_up(command):
    status, out, err = command("plan", "a.png", "clip.mp4", "1920x1080", "--json", "--budget", "64")
    found = json.loads(out)
    assert (status, err) == (0, "")
    chunks = kjp.plan_video(num_frames=30, fps=10.0, width=160, height=48, config="k2.5")
    tokens = [40 // 2, sum(c.plan.num_tokens for c in chunks), 2691]
    tokens[0] = kjp.plan_image(width=130, height=90, config="k2.5").num_tokens
    assert [m["tokens"] for m in found["media"]] == tokens
    assert found["total"]["tokens"] == sum(tokens)
    assert found["media"][1]["grid_thws"] == [list(c.plan.grid_thw) for c in chunks]
    assert found["media"][2]["tokens_at_budget"]["64"] < 64
    assert found["total"]["tokens_at_budget"]["64"] == sum(m["tokens_at_budget"]["64"] for m in found["media"])


@pytest.mark.usefixtures("files")
def test_plan_goes_on_after_a_file_that_cannot_be_read(command):
    status, out, err = command("plan", "broken.png", "a.png", "none.png")
    assert status == 2
    assert "a.png" in out
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["error", "broken.png"], ["error", "none.png"]]


@pytest.mark.usefixtures("files")
def test_long_paths_are_neither_cut_nor_wrapped(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    long = "x" * 180 + ".png"
    Path("a.png").rename(long)
    _, out, _ = command("plan", long)
    assert any(line.endswith(long) for line in out.splitlines())


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_run_writes_what_the_library_returns(files, command, suffix):
    out = "out" + suffix
    status, printed, _ = command("run", "a.png", "clip.mp4", "b.png", "--out", out, "--backend", "numpy", "--json")
    expected = kjp.Preprocessor("k2.5", backend="numpy")(
        [Path("a.png"), {"type": "video", "video": Path("clip.mp4")}, Path("b.png")]
    )
    assert status == 0
    loaded = load_file(out) if suffix == ".safetensors" else np.load(out)
    pixel_values = loaded if suffix == ".npy" else loaded["pixel_values"]
    assert pixel_values.tobytes() == expected.pixel_values.tobytes()
    if suffix != ".npy":
        assert (loaded["grid_thws"] == expected.grid_thws).all()
    found = json.loads(printed)
    assert [m["grid_thw"] for m in found["media"]] == expected.grid_thws.tolist()
    assert [m["prompt"] for m in found["media"]] == list(expected.prompts)
    assert {p.name for p in files.iterdir()} == {"a.png", "b.png", "clip.mp4", "broken.png", out}


@pytest.mark.usefixtures("files")
def test_many_files_come_in_order(command):
    names = [f"n{k}.png" for k in range(35)]
    for k, name in enumerate(names):
        Image.new("RGB", (14 + k, 14), (k, k, k)).save(name)
    command("run", *names, "--out", "all.npz", "--dtype", "uint8", "--backend", "numpy")
    values = np.load("all.npz")
    starts = np.cumsum([0, *values["grid_thws"].prod(1)])[:-1]
    assert values["pixel_values"][starts, 0, 0, 0].tolist() == list(range(35))


@pytest.mark.usefixtures("files")
def test_skipped_files_are_named(command):
    status, out, err = command("run", "broken.png", "a.png", "none.png", "--on-error", "skip", "--backend", "numpy")
    assert status == 2
    assert "(80, 3, 14, 14)" in out
    assert [line.split(": ")[1] for line in err.splitlines()] == ["broken.png", "none.png"]
    assert "medias" not in err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "a.png", "broken.png", "--backend", "numpy"], "error: broken.png: "),
        (["run", "none.png", "--backend", "numpy"], "none.png"),
        (["run", "a.png", "--out", "x.txt"], "'x.txt'; expected a name that ends in .npz"),
        (["run", "a.png", "--out", "nowhere/x.npz"], "the folder 'nowhere' does not exist"),
        (["run", "a.png", "--out", "x.npy", "--dtype", "bfloat16"], "cannot hold bfloat16"),
        (["run", "a.png", "--dtype", "int4"], "int4"),
        (["run"], "Missing argument"),
        (["plan", "1x1", "--config", "k9"], "config 'k9' is neither one of k2.5"),
        (["plan", "0x5"], "0x5"),
        (["plan", "1x1", "--budget", "0"], "budget"),
        (["inspect", "a.png"], "inspect needs --out PICTURE or --html PAGE"),
        (["inspect", "a.png", "b.png", "--out", "x.png"], "--out draws one file; got 2"),
        (["inspect", "a.png", "--out", "x.tiff"], "x.tiff"),
        (["config", "nowhere"], "'nowhere'"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["plan", "--frobnicate"], "No such option"),
    ],
)
def test_wrong_usage_and_input_is_one_line_and_status_2(command, arguments, message):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert message in err
    assert "medias[" not in err


@pytest.mark.usefixtures("files")
def test_verbose_shows_the_chain(command):
    _, _, err = command("run", "broken.png", "--backend", "numpy", "-v")
    assert "Traceback" in err
    assert "UnidentifiedImageError" in err
    assert err.splitlines()[-1].startswith("error: broken.png")


@pytest.mark.usefixtures("files")
def test_a_fault_is_status_1_and_says_how_to_see_more(command, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("kimi_jax_prep.engine.preprocessor.Preprocessor", broken)
    status, _, err = command("run", "a.png")
    assert status == 1
    assert err == "error: RuntimeError: a bug (-v shows the traceback)\n"


def test_an_interrupt_leaves_the_old_file_and_no_other(files, command, monkeypatch):
    Path("out.npz").write_bytes(b"old")

    def interrupted(file, **_):
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    before = {p.name for p in files.iterdir()}
    monkeypatch.setattr("numpy.savez", interrupted)
    status, _, err = command("run", "a.png", "--out", "out.npz", "--backend", "numpy")
    assert (status, err) == (130, "error: interrupted\n")
    assert {p.name for p in files.iterdir()} == before
    assert Path("out.npz").read_bytes() == b"old"


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    with whole_file(tmp_path / "x.npz") as beside:
        beside.write_bytes(b"x")
    assert (tmp_path / "x.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.usefixtures("files")
def test_inspect_draws_pictures_contact_sheets_and_a_page(command):
    assert command("inspect", "a.png", "--out", "grid.png")[0] == 0
    assert command("inspect", "clip.mp4", "--out", "sheet.png", "--config", "k3")[0] == 0
    status, out, _ = command("inspect", "a.png", "clip.mp4", "--html", "page.html", "--json")
    assert status == 0
    assert json.loads(out)["written"] == ["page.html"]
    assert Path("page.html").read_text().count("data:image/png;base64,") == 1 + 6
    with Image.open("grid.png") as grid, Image.open("sheet.png") as sheet:
        assert grid.width >= 130
        assert sheet.height > 200


def test_check_is_equal_here_and_says_so(command):
    status, out, _ = command("check", "--cases", "4", "--json")
    found = json.loads(out)
    assert (status, found["equal"], found["cases"]) == (0, True, 8)
    assert {"python", "jax", "pillow", "devices"} <= found["versions"].keys()


def test_check_says_what_differs(command, monkeypatch):
    from kimi_jax_prep import reference

    right = reference.preprocess

    def wrong(medias, config):
        batch = right(medias, config)
        batch.pixel_values[0, 1, 2, 3] = -0.0
        return batch

    monkeypatch.setattr(reference, "preprocess", wrong)
    status, out, _ = command("check", "--cases", "2")
    assert status == 1
    assert "2 of 4 cases differ" in out or "4 of 4 cases differ" in out
    assert "values in 1 patches; the first, at [0, 1, 2, 3], is" in out


def test_compare_tells_zero_from_minus_zero():
    batch = kjp.Preprocessor("k2.5", backend="numpy")([np.zeros((14, 14, 3), np.uint8)])
    other = kjp.Preprocessor("k2.5", backend="numpy")([np.zeros((14, 14, 3), np.uint8)])
    assert compare(batch, other) == ""
    batch.pixel_values[0, 0, 0, 0], other.pixel_values[0, 0, 0, 0] = 0.0, -0.0
    assert compare(batch, other).startswith("1 of ")


@pytest.mark.usefixtures("files")
def test_bench_gives_percentiles_of_each_way(command):
    status, out, _ = command("bench", "a.png", "-n", "3", "--warmup", "1", "--json")
    assert status == 0
    results = json.loads(out)["results"]
    assert [r["way"] for r in results] == ["jax", "numpy", "reference"]
    assert all(r["p50"] <= r["p90"] <= r["p99"] for r in results)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", ["k2.5", "k3"])
@pytest.mark.parametrize("dialect", ["checkpoint", "transformers"])
def test_configs_come_back_from_both_dialects(command, name, dialect):
    assert command("config", name, "--to", dialect, "--out", "c.json")[0] == 0
    assert kjp.MediaProcConfig.from_json_file("c.json") == kjp.KIMI_K3 if name == "k3" else kjp.KIMI_K25
    assert command("config", name, "c.json") == (0, "no differences\n", "")


def test_config_shows_differences(command):
    status, out, _ = command("config", "k2.5", "k3", "--json")
    found = json.loads(out)
    assert status == 1
    assert found["differences"]["in_patch_limit"] == [16384, 65536]
    assert found["differences"]["transparent_bg_config.pattern"] == [None, "chessboard"]


def test_version_and_help(command):
    assert command("--version")[:2] == (0, f"kimi-jax-prep {kjp.__version__}\n")
    for name in ("plan", "run", "inspect", "check", "bench", "warmup", "config"):
        status, out, _ = command(name, "-h")
        assert status == 0
        assert "--json" in out
