"""transformers' own tests for image processors and processors, run on `KimiImageProcessor` and `KimiProcessor`.

    python tests/processor/try_transformers_tests.py [folder of an unpacked source distribution] [-v]

Takes the source distribution of the installed transformers from the package index, unless a folder is given; nothing of
it is kept. Needs torch and parameterized. Prints a line for each test. Exits with 1 if a test fails that is not listed
in `CANNOT` with its reason, or if one listed there passes. The tests of `KimiProcessor` are in
`try_transformers_text_tests.py`, which this command runs afterwards.
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
from PIL import Image

TESTS = ("test_image_processing_common.py", "test_processing_common.py")
TEXT_TESTS = Path(__file__).with_name("try_transformers_text_tests.py")
# Tests that cannot pass, and why.
CANNOT = {
    "test_image_processor_from_dict_with_kwargs_has_attributes": "the test sets do_convert_rgb=False; the checkpoint "
    "converts or composites every image, and patches have three channels, so it is refused",
    "test_call_numpy_4_channels": "the test asks for patches of four channels; the vision tower takes three",
    "test_new_models_require_torchvision_backend": "there is no torchvision backend: its resize gives other pixels "
    "than the checkpoint's",
}


def source_tests(folder: Path) -> Path:
    """Download and unpack the tests of the installed transformers."""
    name = f"transformers-{transformers.__version__}"
    download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", "pip", *download, "-d", str(folder), name.replace("-", "==")], check=True)
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        for member in archive.getmembers():
            if member.name in [f"{name}/tests/{test}" for test in TESTS]:
                archive.extract(member, folder, filter="data")
    return folder / name


def test_case() -> type[unittest.TestCase]:
    # A module of transformers' repository that fetches pictures. The tests that would are for several backends.
    fetching = types.ModuleType("fetch_hub_objects_for_ci")
    fetching.url_to_local_path = str  # type: ignore[attr-defined]
    sys.modules["fetch_hub_objects_for_ci"] = fetching
    common = importlib.import_module("test_image_processing_common")

    from kimi_jax_prep import KIMI_K25, plan_image
    from kimi_jax_prep.processor import KimiImageProcessor

    class Tester(common.ImageProcessingTester):
        """The settings of transformers' own class for Kimi K2.5."""

        def __init__(self, parent, **kwargs):
            settings = {
                "do_resize": True,
                "size": {"max_height": 512, "max_width": 512},
                "max_patches": 16384,
                "patch_size": 14,
                "merge_size": 2,
                "do_rescale": True,
                "do_normalize": True,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                "do_convert_rgb": True,
            }
            super().__init__(parent, **settings | kwargs)

        def _get_image_processing_classes(self):
            return {"jax": KimiImageProcessor}

        def prepare_image_processor_dict(self):
            return super().prepare_image_processor_dict() | {"names": "transformers"}

    class KimiImageProcessorTest(common.ImageProcessingTestMixin, unittest.TestCase):
        image_processor_tester_class = Tester
        test_cast_dtype = True

        # In transformers the shape is (batch, channels, height, width) unless a model's own tests say otherwise. Kimi's
        # is (patches, 3, 14, 14), as from transformers' own class.
        def _check_call(self, **kind):
            processor = KimiImageProcessor(**self.image_processor_dict)
            images = self.image_processor_tester.prepare_image_inputs(equal_resolution=False, **kind)
            plans = []
            for image in images:
                if isinstance(image, Image.Image):
                    width, height = image.size
                else:
                    height, width = image.shape[-2:] if kind.get("torchify") else image.shape[:2]
                plans.append(plan_image(width=width, height=height, config=KIMI_K25))
            for some, own in ((images[0], plans[:1]), (images, plans)):
                encoded = processor(some, return_tensors="pt")
                patches = sum(plan.num_patches for plan in own)
                assert tuple(encoded.pixel_values.shape) == (patches, 3, 14, 14)
                assert encoded.image_grid_thw.tolist() == [list(plan.grid_thw) for plan in own]

        def test_call_pil(self):
            self._check_call()

        def test_call_numpy(self):
            self._check_call(numpify=True)

        def test_call_pytorch(self):
            self._check_call(torchify=True)

    return KimiImageProcessorTest


def main() -> int:
    verbose = "-v" in sys.argv
    given = [argument for argument in sys.argv[1:] if argument != "-v"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(given[0]) if given else source_tests(Path(name))
        sys.path[:0] = [str(folder / "tests")]
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(test_case())
        names = [name_of(test) for test in suite]
        result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
        text = 0
        if TEXT_TESTS.exists():
            text = subprocess.run([sys.executable, str(TEXT_TESTS), str(folder)], check=False).returncode
    return report(names, result, verbose=verbose) or text


def report(names: list[str], result: unittest.TestResult, *, verbose: bool) -> int:
    """Print what happened to every test; 1 if that is not what `CANNOT` says."""
    bad = {name_of(test): trace for test, trace in (*result.failures, *result.errors)}
    skipped = {name_of(test): reason for test, reason in result.skipped}
    unexpected = False
    for test in names:
        if test in bad:
            unexpected |= test not in CANNOT
            print(f"failed   {test}: {CANNOT.get(test) or bad[test].strip().splitlines()[-1]}")
        elif test in skipped:
            print(f"skipped  {test}: {skipped[test]}")
        else:
            unexpected |= test in CANNOT
            print(f"passed   {test}")
    if verbose:
        print(*bad.values(), sep="\n\n")
    states = ["failed" if test in bad else "skipped" if test in skipped else "passed" for test in names]
    print("KimiImageProcessor:", ", ".join(f"{count} {state}" for state, count in collections.Counter(states).items()))
    return int(unexpected)


def name_of(test: unittest.TestCase) -> str:
    """Of the method. A subtest has its parameters after it."""
    return test.id().partition(" ")[0].rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
