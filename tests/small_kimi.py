"""A small tokenizer of transformers' own kind with Kimi's placeholders and chat template, and media to go with it."""

import base64
import io

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import kimi_jax_prep as kjp
from kimi_jax_prep.processor import KimiImageProcessor, KimiProcessor

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3
PAD, VIDEO, IMAGE3 = "<|media_pad|>", "<|kimi_k25_video_placeholder|>", "<|kimi_image_placeholder|>"
IMAGE = f"<|media_begin|>image<|media_content|>{PAD}<|media_end|>"
SPECIAL = ["<|media_begin|>", "<|media_content|>", PAD, "<|media_end|>", VIDEO, "<|im_user|>", "<|im_end|>", "[EOS]"]
# What Kimi-K2.5's template does with media and roles, and no more.
TEMPLATE = (
    "{% if tools %}tools {{ tools | length }}{% endif %}"
    "{% for m in messages %}<|im_user|>{{ m.role }} "
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type in ('image', 'image_url') %}" + IMAGE + "{% elif c.type in ('video', 'video_url') %}" + VIDEO + "\n"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_user|>assistant {% if thinking %}think{% endif %}{% endif %}"
)


def make_tokenizer(special=tuple(SPECIAL), *, template=TEMPLATE, eos=False, **options) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["describe the image", "what happens in the video", "hello world"], trainer)
    options = {"pad_token": "[PAD]", "additional_special_tokens": list(special)} | options
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **options)
    if eos:
        number = tokenizer.convert_tokens_to_ids("[EOS]")
        backend = tokenizer.backend_tokenizer
        backend.post_processor = processors.TemplateProcessing(
            single="[EOS] $A [EOS]", special_tokens=[("[EOS]", number)]
        )
    tokenizer.chat_template = template
    return tokenizer


TOKENIZER = make_tokenizer()
PAD_ID = TOKENIZER.convert_tokens_to_ids(PAD)


def processor(config=K25, *, tokenizer=TOKENIZER, prompt_style=None, outputs=None, **options) -> KimiProcessor:
    image_processor = KimiImageProcessor(media_proc_cfg=config, **options)
    return KimiProcessor(image_processor, tokenizer, prompt_style=prompt_style, outputs=outputs)


def picture(width=40, height=30, seed=0, mode="RGB") -> Image.Image:
    shape = (height, width, len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def film(frames=9, width=40, height=30, fps=2.0) -> dict:
    return {"type": "video", "video": [picture(width, height, seed=k) for k in range(frames)], "fps": fps}


def data_url(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def ids_of(text: str, tokenizer=TOKENIZER) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
