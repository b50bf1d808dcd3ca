"""Clients of the checkpoint's and of transformers' processors: their calls, replayed on this library's objects.

Each test is named after the client. Pixels and grids are compared with `reference`, ids with what the tokenizer makes
of the text that the client expects.
"""

import base64
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bits import assert_bit_equal
from numbered_video import video
from small_kimi import IMAGE, IMAGE3, K3, K25, PAD, PAD_ID, TOKENIZER, VIDEO, data_url, film, ids_of, picture, processor
from transformers import AutoProcessor, BaseImageProcessor

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.processor import KimiImageProcessor, KimiProcessor, register

torch = pytest.importorskip("torch", reason="torch is an extra")

VIDEO_ID = TOKENIZER.convert_tokens_to_ids(VIDEO)
MODELS = pytest.mark.parametrize("config", [K25, K3], ids=["k2.5", "k3"])
IMAGES = [picture(100, 57), picture(29, 64, seed=1)]


def image_medias(images=IMAGES) -> list[dict]:
    return [{"type": "image", "image": image} for image in images]


def placeholder(config) -> str:
    return IMAGE if config is K25 else IMAGE3


def prompt(config, image) -> str:
    return IMAGE if config is K25 else f"<|media_begin|>image {image.width}x{image.height}{IMAGE[20:]}"


def assert_pixels(got, medias, config, names=("pixel_values", "grid_thws")) -> None:
    want = reference.preprocess(medias, config)
    assert_bit_equal(np.asarray(got[names[0]]), want.pixel_values, what=names[0])
    assert_bit_equal(np.asarray(got[names[1]]), want.grid_thws, what=names[1])


def chunks_of(video) -> list[dict]:
    return KimiImageProcessor().split_video_chunks(video)


@MODELS
def test_sglang(config):
    proc = processor(config, outputs="checkpoint")
    assert proc.media_processor is proc.image_processor
    assert proc.tokenizer is TOKENIZER
    assert isinstance(proc.image_processor, BaseImageProcessor)
    counts = [proc.media_processor.media_tokens_calculator(media) for media in image_medias()]
    assert counts == list(reference.preprocess(image_medias(), config).num_tokens)
    text = "describe " + " and ".join(
        prompt(config, image).replace(PAD, PAD * count) for image, count in zip(IMAGES, counts, strict=True)
    )
    got = proc(text=[text], medias=image_medias(), padding=True, return_tensors="pt")
    assert got["input_ids"].tolist() == [ids_of(text)]
    assert isinstance(got["input_ids"], torch.Tensor)
    assert got["attention_mask"].tolist() == [[1] * len(ids_of(text))]
    assert [end - start for start, end in got.media_spans[0]] == counts
    assert_pixels(got, image_medias(), config)


@MODELS
def test_sglang_benchmark(config):
    proc = processor(config, outputs="checkpoint")
    image = picture(224, 224)
    text = f"{prompt(config, image)} what is it?"
    got = proc(text=text, medias=image_medias([image]), return_tensors="pt")
    # The tool adds the image's tokens by itself: one pad and the words around it are in the ids.
    assert proc.media_processor.media_tokens_calculator({"type": "image", "image": image}) == 64
    assert got["input_ids"].tolist() == [ids_of(text)]
    assert_pixels(got, image_medias([image]), config)


def test_gllm():
    proc = processor(outputs="checkpoint")
    assert proc.media_processor.media_proc_cfg["in_patch_limit"] == K25.in_patch_limit
    medias = [image_medias()[0], *chunks_of(film(6)), image_medias()[1]]
    got = proc.media_processor.preprocess(medias, return_tensors="pt")
    assert list(got) == ["pixel_values", "grid_thws"]
    assert isinstance(got["pixel_values"], torch.Tensor)
    assert_pixels(got, medias, K25)


@pytest.mark.parametrize("client", ["tensorrt_llm", "token_speed", "relax", "megatron_bridge"])
def test_clients_that_tokenize_by_themselves_k25(client):
    proc = processor(outputs="checkpoint")
    first, second = film(6), film(9, width=60)
    medias = [image_medias()[0], first, image_medias()[1], second]
    updated, prompts = proc.preprocess_medias(medias)
    assert [media["type"] for media in updated] == ["image", *["video_chunk"] * 2, "image", *["video_chunk"] * 3]
    chunks = [chunks_of(first), chunks_of(second)]
    assert prompts == ["".join(chunk["prompt"] for chunk in own) for own in chunks]
    text = f"{IMAGE} then {VIDEO}, {IMAGE} then {VIDEO} ({client})"
    raw = proc.update_raw_text(text, prompts)
    assert raw == f"{IMAGE} then {prompts[0]}, {IMAGE} then {prompts[1]} ({client})"
    assert proc.update_raw_text("no video", prompts) == "no video"
    assert proc.image_processor.split_video_chunks(first)[0]["prompt"] == chunks[0][0]["prompt"]
    pixels = proc.image_processor.preprocess(updated, return_tensors="pt")
    assert_pixels(pixels, [medias[0], *chunks[0], medias[2], *chunks[1]], K25)
    # The whole call does the same.
    got = proc(text=text, medias=medias)
    assert got["input_ids"].tolist() == [ids_of(raw)]
    with pytest.raises(kjp.TextError, match=r"2 `<\|kimi_k25_video_placeholder\|>`, but there are 1 prompts"):
        proc.update_raw_text(text, prompts[:1])
    with pytest.raises(kjp.MediaError, match=r"medias\[1\]"):
        proc.preprocess_medias([medias[0], {"type": "video", "video": []}])


def test_clients_that_tokenize_by_themselves_k3():
    proc = processor(K3, outputs="checkpoint")
    updated, prompts = proc.preprocess_medias(image_medias())
    assert prompts == [proc.image_processor.make_image_prompt(*image.size) for image in IMAGES]
    raw = proc.update_raw_text(f"{IMAGE3} or {IMAGE3}", prompts)
    assert raw == f"{prompts[0]} or {prompts[1]}"
    assert_pixels(proc.image_processor.preprocess(updated, return_tensors="pt"), image_medias(), K3)
    assert proc(text=f"{IMAGE3} or {IMAGE3}", medias=image_medias())["input_ids"].tolist() == [ids_of(raw)]
    with pytest.raises(kjp.MediaError, match=r"medias\[0\] is a video"):
        proc.preprocess_medias([film()])
    with pytest.raises(kjp.TextError, match=r"1 `<\|kimi_image_placeholder\|>`, but there are 2 prompts"):
        proc.update_raw_text(IMAGE3, prompts)


@MODELS
def test_megatron_bridge_messages(config):
    proc = processor(config, outputs="checkpoint")
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "image", "image_url": IMAGES[0]},
                {"type": "text", "text": "or"},
                {"type": "image", "image_url": IMAGES[1]},
            ],
        }
    ]
    template = None if config is K25 else proc.tokenizer.chat_template.replace(IMAGE, IMAGE3)
    got = proc(messages=messages, chat_template=template)
    ids = got.input_ids[0]
    assert isinstance(ids, torch.Tensor)
    assert int((ids == PAD_ID).sum()) == 2
    text = f"<|im_user|>user {prompt(config, IMAGES[0])}or{prompt(config, IMAGES[1])}<|im_end|>"
    assert ids.tolist() == ids_of(text)
    assert_pixels(got, image_medias(), config)


@MODELS
def test_megatron_bridge_from_dict(config):
    values = config.to_dict()
    assert KimiImageProcessor.from_dict(values, _from_auto=True).config == config
    assert (
        KimiImageProcessor.from_dict({**values, "_from_auto": True}, _from_auto=True).config.to_dict()["media_proc_cfg"]
        == (config.to_dict()["media_proc_cfg"])
    )


def checkpoint_folder(path: Path, config=K25, **more) -> Path:
    """A folder as the checkpoint's: its own classes, by `auto_map`, and a tokenizer."""
    TOKENIZER.save_pretrained(path)
    name = "kimi_k25_processor.KimiK25Processor" if config is K25 else "kimi_k3_processor.KimiK3Processor"
    values = config.to_dict() | {"auto_map": {"AutoProcessor": name, "AutoImageProcessor": "x.Y"}} | more
    (path / "preprocessor_config.json").write_text(json.dumps(values))
    (path / "config.json").write_text(json.dumps({"model_type": "kimi_k25" if config is K25 else "kimi_k3"}))
    return path


def transformers_folder(path: Path) -> Path:
    """A folder as transformers' port saves it."""
    TOKENIZER.save_pretrained(path)
    image = KimiImageProcessor(names="transformers").to_dict() | {"image_processor_type": "Kimi_K25ImageProcessor"}
    values = {"processor_class": "Kimi_K25Processor", "image_processor": image}
    (path / "processor_config.json").write_text(json.dumps(values))
    (path / "config.json").write_text(json.dumps({"model_type": "kimi_k25"}))
    return path


@pytest.fixture
def registered(monkeypatch):
    from transformers import AutoImageProcessor

    for auto in (AutoImageProcessor, AutoProcessor):
        monkeypatch.setattr(auto, "from_pretrained", auto.__dict__["from_pretrained"])
    register()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("folder", [checkpoint_folder, transformers_folder])
def test_sglang_jax(folder, tmp_path):
    proc = AutoProcessor.from_pretrained(folder(tmp_path), trust_remote_code=True)
    assert isinstance(proc, KimiProcessor)
    video = film(6)["video"]
    names = ("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")
    got = proc(images=IMAGES, videos=None, audio=None, text=f"{IMAGE} or {IMAGE}", return_tensors="pt")
    counts = reference.preprocess(IMAGES, K25).num_tokens
    expanded = " or ".join(IMAGE.replace(PAD, PAD * count) for count in counts)
    assert got["input_ids"][0].tolist() == ids_of(expanded)
    assert_pixels(got, IMAGES, K25, names[0])
    assert [tuple(grid) for grid in got["image_grid_thw"].tolist()] == [(1, 6, 8), (1, 6, 4)]
    got = proc(images=None, videos=[video], audio=None, text=VIDEO, return_tensors="pt")
    chunks = chunks_of(video)
    counts = reference.preprocess(chunks, K25).num_tokens
    words = [chunk["prompt"].replace(PAD, VIDEO * n) for chunk, n in zip(chunks, counts, strict=True)]
    assert got["input_ids"][0].tolist() == ids_of("".join(words))
    assert_pixels(got, chunks, K25, names[1])
    got = proc(images=[IMAGES[0]], videos=[video], audio=None, text=f"{VIDEO}{IMAGE}", return_tensors="pt")
    assert_pixels(got, IMAGES[:1], K25, names[0])
    assert_pixels(got, chunks, K25, names[1])
    got = proc(images=None, videos=None, audio=None, text="hello", return_tensors="pt")
    assert got["input_ids"][0].tolist() == ids_of("hello")


def test_transformers_users():
    proc = processor(outputs="transformers", names="transformers")
    video = film(6)
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "image", "image": IMAGES[0]},
                {"type": "text", "text": "and"},
                {"type": "video", "video": video["video"]},
            ],
        }
    ]
    got = proc.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs={}, add_generation_prompt=True
    )
    text = proc.apply_chat_template(messages, add_generation_prompt=True)
    want = proc(images=[IMAGES[0]], videos=[video["video"]], text=text, return_tensors="pt")
    assert list(got) == list(want)
    for name in want:
        assert torch.equal(got[name], want[name]), name
    assert_pixels(got, IMAGES[:1], K25, ("pixel_values", "image_grid_thw"))
    only_ids = proc.apply_chat_template(messages, tokenize=True, return_dict=False, add_generation_prompt=True)
    assert only_ids == want["input_ids"].tolist()
    assert got["input_ids"][0].tolist().count(PAD_ID) == 3 * 4


def test_transformers_lists_of_media():
    proc = processor(outputs="transformers")
    texts = [f"{IMAGE}{VIDEO}", "alone", f"{IMAGE}{IMAGE}"]
    video = film(6)["video"]
    medias = [[IMAGES[0], {"type": "video", "video": video}], [], [IMAGES[1], IMAGES[0]]]
    want = proc(text=texts, medias=medias, padding=True, return_tensors="np")
    nested = [[IMAGES[0]], None, [IMAGES[1], IMAGES[0]]]
    for images, videos in itertools.product(
        [nested, [IMAGES[0], IMAGES[1], IMAGES[0]]],
        [video, [video], [[video], [], None], np.stack([np.asarray(frame) for frame in video])],
    ):
        got = proc(text=texts, images=images, videos=videos, padding=True, return_tensors="np")
        assert list(got) == list(want)
        for name in want:
            assert_bit_equal(got[name], want[name], what=name)
    one = proc(text=IMAGE, images=IMAGES[0], return_tensors="np")
    assert_bit_equal(one["image_grid_thw"], np.array([[1, 6, 8]]), what="one picture")
    assert "pixel_values" not in proc(text="x", images=None, videos=None)
    with pytest.raises(kjp.TextError, match="`images` has 2 lists for 3 texts"):
        proc(text=texts, images=[[IMAGES[0]], None])
    with pytest.raises(kjp.TextError, match="2 images"):
        proc(text=IMAGE, images=IMAGES)
    with pytest.raises(TypeError, match="in `medias`, or in `images` and `videos`, not in both"):
        proc(text=IMAGE, images=IMAGES[0], medias=IMAGES[0])


@pytest.mark.parametrize("as_object", [False, True])
def test_vllm_passes_what_it_knows_of_frames(as_object, monkeypatch):
    # What `frames_indices` do to times is the business of `media`; here they must reach it.
    from kimi_jax_prep.processor.call import assembly

    seen = []

    def spy(self, medias, **overrides):  # noqa: ARG001
        seen.extend(medias)
        raise kjp.MediaError("seen")

    monkeypatch.setattr(assembly.KimiImageProcessor, "to_batch", spy)
    frames, about = film(4)["video"], {"fps": 30.0, "frames_indices": [0, 15, 30, 45], "total_num_frames": 60}
    metadata = SimpleNamespace(**about) if as_object else about
    want = {"type": "video", "video": frames, "fps": 30.0, "frames_indices": [0, 15, 30, 45]}
    messages = [{"role": "user", "content": [{**want, "video": frames}]}]
    one = processor()
    for call in (
        {"text": VIDEO, "videos": [(frames, metadata)]},
        {"text": VIDEO, "videos": [frames], "video_metadata": [metadata]},
        {"text": VIDEO, "videos": frames, "video_metadata": metadata},
        {"text": VIDEO, "medias": [want]},
        {"messages": messages},
    ):
        seen.clear()
        with pytest.raises(kjp.MediaError, match="seen"):
            one(**call)
        assert seen == [want]
    with pytest.raises(TypeError, match="`video_metadata` goes with `videos`; a medium holds 'fps'"):
        one(text=VIDEO, medias=[want], video_metadata=[metadata])
    with pytest.raises(kjp.TextError, match="`video_metadata` has 2 entries for 1 videos"):
        one(text=VIDEO, videos=[frames], video_metadata=[metadata, metadata])


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("config", [K25, K3], ids=["k2.5", "k3"])
def test_the_folder_decides_whose_place_is_taken(config, tmp_path):
    folder = checkpoint_folder(tmp_path, config)
    for load in (KimiProcessor.from_pretrained, AutoProcessor.from_pretrained):
        one = load(folder, trust_remote_code=True)
        assert isinstance(one, KimiProcessor)
        assert one.outputs == "checkpoint"
        assert one.image_processor.config.in_patch_limit == config.in_patch_limit
        got = one(text=placeholder(config), medias=IMAGES[:1])
        assert isinstance(got["input_ids"], torch.Tensor)
        assert int((got["input_ids"] == PAD_ID).sum()) == 1
        assert_pixels(got, IMAGES[:1], config)
        assert load(folder, outputs="transformers").outputs == "transformers"
    one.save_pretrained(tmp_path / "saved")
    values = json.loads((tmp_path / "saved" / "preprocessor_config.json").read_text())
    assert values["auto_map"] == json.loads((folder / "preprocessor_config.json").read_text())["auto_map"]
    assert json.loads((tmp_path / "saved" / "processor_config.json").read_text())["processor_class"] == "KimiProcessor"
    for again in (
        KimiProcessor.from_pretrained(tmp_path / "saved"),
        AutoProcessor.from_pretrained(tmp_path / "saved", trust_remote_code=True),
    ):
        assert isinstance(again, KimiProcessor)
        assert again.outputs == "checkpoint"
        assert again.image_processor.config == one.image_processor.config


def test_transformers_folder_means_its_names(tmp_path):
    one = KimiProcessor.from_pretrained(transformers_folder(tmp_path))
    assert one.outputs == "transformers"
    assert "image_grid_thw" in one(text=IMAGE, medias=IMAGES[:1])
    # With both, remote code runs only for callers that trust it.
    values = json.loads((tmp_path / "processor_config.json").read_text())
    values["auto_map"] = {"AutoProcessor": "kimi_k25_processor.KimiK25Processor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(values))
    assert KimiProcessor.from_pretrained(tmp_path).outputs == "transformers"
    assert KimiProcessor.from_pretrained(tmp_path, trust_remote_code=True).outputs == "checkpoint"


def test_without_a_folder_nobodys_place_is_taken(tmp_path):
    one = processor()
    assert one.outputs is None
    got = one(text=IMAGE, medias=IMAGES[:1])
    assert isinstance(got["input_ids"], list)
    assert got["input_ids"][0].count(PAD_ID) == 12
    assert "grid_thws" in got
    one.save_pretrained(tmp_path)
    assert KimiProcessor.from_pretrained(tmp_path).outputs is None
    with pytest.raises(
        kjp.ConfigError, match="`outputs` is 'vllm'; expected one of None, 'checkpoint', 'transformers'"
    ):
        processor(outputs="vllm")


@pytest.mark.parametrize("kind", [list, np.array, tuple])
def test_vllm_frames_sampled_elsewhere(kind):
    frames, indices = film(6)["video"], [3, 15, 30, 45, 60, 75]
    metadata = {"fps": 30.0, "frames_indices": kind(indices)}
    got = processor(outputs="checkpoint")(text=VIDEO, videos=[(frames, metadata)], expand=False)
    # Every frame is taken, and times are those of the source.
    prompts = "".join(KimiImageProcessor.make_chunk_prompt(time) for time in ("00:00:00.100", "00:00:02.000"))
    assert got["input_ids"] == [ids_of(prompts.replace(PAD, VIDEO))]
    chunks = [{"type": "video_chunk", "video_chunk": part} for part in (frames[:4], frames[4:])]
    assert_pixels(got, chunks, K25, ("pixel_values_videos", "video_grid_thw"))
    medium = {"type": "video", "video": np.stack([np.asarray(frame) for frame in frames]), **metadata}
    assert_pixels(processor(outputs="checkpoint")(text=VIDEO, medias=[medium]), chunks, K25)
    parts = KimiImageProcessor().split_video_chunks(medium)
    assert "".join(part["prompt"] for part in parts) == prompts


def test_frames_sampled_elsewhere_that_do_not_fit():
    medium = {"type": "video", "video": film(3)["video"], "fps": 2.0, "frames_indices": [0, 1]}
    with pytest.raises(kjp.MediaError, match=r"medias\[1\]: 'frames_indices' has 2 .* 3 frames"):
        processor()(text=f"{IMAGE}{VIDEO}", medias=[IMAGES[0], medium])


@pytest.mark.parametrize("outputs", [None, "transformers"])
def test_parts_of_messages_as_media(outputs):
    url = data_url(IMAGES[0])
    clip = "data:video/mp4;base64," + base64.b64encode(video(20, rate=10)).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "video_url", "video_url": {"url": clip, "fps": 10.0}},
    ]
    one = processor(outputs=outputs)
    got = one(text=f"{IMAGE}{VIDEO}", medias=parts, return_tensors="np")
    want = one(messages=[{"role": "user", "content": parts}], chat_template=f"{IMAGE}{VIDEO}", return_tensors="np")
    assert list(got) == list(want)
    for name in want:
        assert_bit_equal(got[name], want[name], what=name)
    updated, prompts = one.preprocess_medias(parts)
    assert len(prompts) == 1
    assert len(updated) == 1 + prompts[0].count(PAD)


def test_vllm_asks_transformers_processors_for_counts():
    one = processor(outputs="transformers")
    assert (one.image_token, one.image_token_id) == (PAD, PAD_ID)
    assert (one.video_token, one.video_token_id) == (VIDEO, VIDEO_ID)
    assert processor(K3).video_token is processor(K3).video_token_id is None
    counts = one._get_num_multimodal_tokens(image_sizes=[(57, 100), (64, 29)], video_sizes=[(6, 30, 40)])
    want = reference.preprocess(IMAGES, K25)
    assert counts["num_image_tokens"] == list(want.num_tokens)
    assert counts["num_image_patches"] == want.grid_thws.prod(1).tolist()
    got = one(text=VIDEO, videos=film(6)["video"])
    assert counts["num_video_tokens"] == [got["input_ids"][0].count(VIDEO_ID)]
    small = one._get_num_multimodal_tokens(image_sizes=[(400, 600)], in_patch_limit=64)
    ids = one(text=IMAGE, images=picture(600, 400), in_patch_limit=64)["input_ids"][0]
    assert small["num_image_tokens"] == [ids.count(PAD_ID)]


def test_arrays_of_several_media():
    one = processor(outputs="transformers")
    pictures = np.stack([np.asarray(picture(seed=k)) for k in range(2)])
    videos = np.stack([np.stack([np.asarray(frame) for frame in film(3)["video"]])] * 2)
    got = one(text=f"{IMAGE}{IMAGE}{VIDEO}{VIDEO}", images=pictures, videos=videos)
    want = one(text=f"{IMAGE}{IMAGE}{VIDEO}{VIDEO}", images=list(pictures), videos=list(videos))
    assert got["input_ids"] == want["input_ids"]
    assert len(got["image_grid_thw"]) == len(got["video_grid_thw"]) == 2
    # Pads that are there already stand for one picture.
    count = reference.preprocess(IMAGES[:1], K25).num_tokens[0]
    text = f"{VIDEO}{IMAGE.replace(PAD, PAD * count)}{VIDEO}"
    got = one(text=text, images=IMAGES[:1], videos=[film(2), chunks_of(film(6))])
    assert got["input_ids"][0].count(PAD_ID) == count


def test_errors_of_media_say_which(tmp_path):
    one = processor(outputs="checkpoint")
    with pytest.raises(FileNotFoundError, match=r"medias\[1\]"):
        one.preprocess_medias([IMAGES[0], {"type": "video", "video": tmp_path / "none.mp4"}])
    with pytest.raises(FileNotFoundError, match=r"medias\[0\]"):
        processor(K3).preprocess_medias([tmp_path / "none.png"])


@pytest.mark.parametrize("wrapped", [False, True])
def test_k3_media_are_readable_after_preprocess_medias(wrapped):
    import io

    class Response(io.BytesIO):
        def seek(self, *_):
            raise OSError("not seekable")

    stream = io.BytesIO()
    IMAGES[0].save(stream, "PNG")
    medium = Response(stream.getvalue())
    proc = processor(K3, outputs="checkpoint")
    updated, prompts = proc.preprocess_medias([{"type": "image", "image": medium} if wrapped else medium])
    assert prompts == [prompt(K3, IMAGES[0])]
    assert_pixels(proc.image_processor.preprocess(updated), IMAGES[:1], K3)


def test_without_torch_the_default_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    one = processor(outputs="checkpoint")
    with pytest.raises(ImportError, match=r"needs torch: .*pass return_tensors='np', or load it with outputs=None"):
        one(text="x")
    with pytest.raises(ImportError, match=r"needs torch: pip install 'kimi-jax-prep\[torch\]'$"):
        one(text="x", return_tensors="pt")
    assert one(text="x", return_tensors="np")["input_ids"].tolist() == [ids_of("x")]


def test_the_checkpoints_arguments_by_position():
    one = processor(outputs="checkpoint")
    want = one(text=IMAGE, medias=image_medias()[:1], return_tensors="pt")
    got = one(None, image_medias()[:1], IMAGE, "pt")
    assert torch.equal(got["input_ids"], want["input_ids"])
    assert isinstance(one(None, image_medias()[:1], IMAGE, None)["input_ids"], list)
