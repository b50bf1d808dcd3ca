"""transformers' own tests for processors, run on `KimiProcessor`.

    python tests/processor/try_transformers_text_tests.py [folder of an unpacked source distribution]

Takes the source distribution of the installed transformers from the package index, unless a folder is given. Nothing of
it is kept. Prints a line for each test; exits with 1 if a test fails that is not listed in `CANNOT` with its reason, or
if one listed there passes.
"""

import collections
import importlib
import io
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
from pathlib import Path

import transformers

TESTS = ("test_processing_common.py",)
# Tests that cannot pass, and why.
_TENSORS = "`return_tensors` is an argument of the checkpoint's processor, and None means lists, not a default"
_RESCALE = "the test sets rescale_factor=-1, which gives other pixels than the checkpoint's; it is refused"
CANNOT: dict[str, str] = {
    "test_call_arguments_default_none": _TENSORS,
    "test_call_arguments_not_in_processor_kwargs": _TENSORS,
    "test_chat_template_message_objects": "media are taken out before a template is rendered, so it cannot print a URL",
    "test_kwargs_overrides_default_subprocessor_kwargs_0_images": _RESCALE,
    "test_processor_with_multiple_inputs": "the test writes a video's placeholder but passes no video, because there "
    "is no `video_processor`: the image processor takes both",
    "test_save_load_pretrained_additional_features": "the test sets do_normalize=False alone; one table rescales and "
    "normalizes, so it is both or none",
    "test_structured_kwargs_nested_from_dict_0_images": _RESCALE,
    "test_subprocessor_defaults_preserved_by_kwargs_0_images": _RESCALE,
    "test_unstructured_kwargs_0_images": _RESCALE,
    "test_unstructured_kwargs_batched_0_images": _RESCALE,
}


def source_tests(folder: Path) -> Path:
    """The folder `tests` of transformers' source distribution."""
    name = f"transformers-{transformers.__version__}"
    download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", "pip", *download, "-d", str(folder), name.replace("-", "==")], check=True)
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        for member in archive.getmembers():
            if member.name in [f"{name}/tests/{test}" for test in TESTS]:
                archive.extract(member, folder, filter="data")
    return folder / name / "tests"


def stand_ins(folder: Path) -> None:
    """A module of transformers' repository that fetches media: here they are made."""
    sys.path[:0] = [str(Path(__file__).parents[1])]
    import numbered_video
    from small_kimi import picture

    picture(320, 240).save(folder / "picture.png")
    (folder / "film.mp4").write_bytes(numbered_video.video(30, rate=10))

    def url_to_local_path(url: str, **_: object) -> str:
        return str(folder / ("film.mp4" if url.endswith(".mp4") else "picture.png"))

    module = types.ModuleType("fetch_hub_objects_for_ci")
    module.url_to_local_path = url_to_local_path  # type: ignore[attr-defined]
    sys.modules["fetch_hub_objects_for_ci"] = module


def test_case() -> type[unittest.TestCase]:
    from small_kimi import make_tokenizer

    from kimi_jax_prep.processor import KimiImageProcessor, KimiProcessor

    common = importlib.import_module("test_processing_common")

    class KimiProcessorTest(common.ProcessorTesterMixin, unittest.TestCase):
        processor_class = KimiProcessor

        @classmethod
        def _setup_image_processor(cls):
            return KimiImageProcessor(names="transformers", allow_paths=True)

        @classmethod
        def _setup_tokenizer(cls):
            return make_tokenizer()

        @staticmethod
        def prepare_processor_dict():
            return {"outputs": "transformers"}

    return KimiProcessorTest


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = Path(sys.argv[1]) / "tests" if len(sys.argv) > 1 else source_tests(folder)
        sys.path[:0] = [str(tests)]
        stand_ins(folder)
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(test_case())
        names = [test.id().rpartition(".")[2] for test in suite]
        result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
        bad = {test.id().rpartition(".")[2]: text for test, text in (*result.failures, *result.errors)}
        skipped = {test.id().rpartition(".")[2]: why for test, why in result.skipped}
    unexpected = 0
    for test in names:
        if test in bad:
            unexpected += test not in CANNOT
            print(f"failed   {test}: {CANNOT.get(test) or bad[test].strip().splitlines()[-1]}")
        elif test in skipped:
            print(f"skipped  {test}: {skipped[test]}")
        else:
            unexpected += test in CANNOT
            print(f"passed   {test}")
    if "-v" in sys.argv:
        print(*bad.values(), sep="\n\n")
    counts = collections.Counter("failed" if t in bad else "skipped" if t in skipped else "passed" for t in names)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return int(unexpected > 0)


if __name__ == "__main__":
    sys.exit(main())
