"""`KimiInputs` wherever transformers' own `BatchFeature` goes: rebuilt, merged, moved, and through a `Trainer`."""

import copy
import pickle

import numpy as np
import pytest
from bits import assert_bit_equal
from small_kimi import IMAGE, VIDEO, film, picture, processor
from transformers.image_processing_base import BatchFeature

from kimi_jax_prep.processor import KimiInputs


def inputs(kind="np") -> KimiInputs:
    return processor()(text=f"{IMAGE} {VIDEO}", medias=[picture(), film(2)], return_tensors=kind)


def test_it_is_rebuilt_from_its_items():
    one = inputs()
    again = type(one)(dict(one.items()))
    assert list(again) == list(one)
    assert again.media_spans is None
    assert again["pixel_values"] is one["pixel_values"]
    assert type(one)(one).media_spans == one.media_spans
    assert type(one)() == {}


def test_it_merges_as_any_mapping():
    one = inputs()
    merged = one | {"labels": one["input_ids"]}
    assert isinstance(merged, KimiInputs)
    assert list(merged) == [*one, "labels"]
    assert merged.media_spans == one.media_spans
    assert (one | {"input_ids": [[1]]}).media_spans is None
    assert list({"labels": 1} | one) == ["labels", *one]
    kept = one.copy()
    kept |= {"labels": 1}
    assert "labels" in kept
    assert "labels" not in one


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), KimiInputs.copy])
def test_copies_keep_the_spans_and_are_their_own(copied):
    one = inputs()
    other = copied(one)
    assert isinstance(other, KimiInputs)
    assert other.media_spans == one.media_spans
    other["labels"] = 1
    assert "labels" not in one
    for name in one:
        assert_bit_equal(other[name], one[name], what=name)


def test_tensors_are_made_and_moved():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    one = KimiInputs(dict(inputs()), "pt")
    assert isinstance(one["pixel_values"], torch.Tensor)
    want = BatchFeature(dict(inputs("pt"))).to("cpu", dtype=torch.bfloat16)
    got = inputs("pt").to("cpu", dtype=torch.bfloat16)
    assert isinstance(got, KimiInputs)
    assert got.media_spans == inputs().media_spans
    for name in want:
        assert got[name].dtype == want[name].dtype
        assert torch.equal(got[name], want[name])
    assert inputs("pt").to("meta")["pixel_values"].device.type == "meta"


def test_accelerate_sends_slices_and_joins_it():
    pytest.importorskip("torch", reason="torch is an extra")
    operations = pytest.importorskip("accelerate.utils.operations", reason="accelerate comes with the test extra")
    one = inputs("pt")
    sent = operations.send_to_device(one, "cpu")
    assert list(sent) == list(one)
    assert list(operations.recursively_apply(lambda tensor: tensor + 1, one)) == list(one)
    assert operations.find_batch_size(one) == 1
    assert len(operations.concatenate([one, one])["input_ids"]) == 2


def test_a_trainer_takes_two_steps(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is an extra")
    pytest.importorskip("accelerate", reason="accelerate comes with the test extra")
    from transformers import Trainer, TrainingArguments

    seen = []

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, input_ids, attention_mask, pixel_values, grid_thws, labels):
            seen.append((tuple(input_ids.shape), tuple(grid_thws.shape), int((labels >= 0).sum())))
            assert attention_mask.shape == input_ids.shape == labels.shape
            return {"loss": ((pixel_values.mean(dim=(0, 2, 3)) * self.weight) ** 2).sum()}

    one = processor()

    def collate(rows):
        batch = one(
            text=[row["text"] for row in rows],
            medias=[row["medias"] for row in rows],
            padding=True,
            return_tensors="pt",
        )
        return batch | {"labels": batch["input_ids"].clone()}

    rows = [{"text": f"{IMAGE} number {k}", "medias": [picture(seed=k)]} for k in range(4)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        remove_unused_columns=False,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = Tiny()
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
    assert [grids for _, grids, _ in seen] == [(2, 3), (2, 3)]
    assert all(learned > 0 for *_, learned in seen)
    assert not np.array_equal(model.weight.detach().numpy(), np.ones(3, np.float32))
