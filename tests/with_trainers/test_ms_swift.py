"""The real ms-swift opens our export: images in mid-conversation, loss on our steps only."""

import json
import os
from pathlib import Path

import pytest
from swift.dataset import load_dataset
from swift.model import get_processor
from swift.template import get_template

FOLDER = Path(os.environ["EXPORTS"])
OUTPUT = FOLDER / "ms-swift"


@pytest.fixture(scope="module")
def processor():
    os.environ["ROOT_IMAGE_DIR"] = str(OUTPUT)
    return get_processor(str(FOLDER / "model"), model_type="qwen2_5_vl")


def rows(name):
    return list(load_dataset([str(OUTPUT / name)])[0])


def learnt(processor, found, side=""):
    """The texts that are learnt, and how many images' patches the model gets."""
    pairs = zip(found[f"{side}input_ids"], found[f"{side}labels"], strict=True)
    parts, before = [""], False
    for token, label in pairs:
        if label != -100:
            parts[-1] += processor.tokenizer.decode([token])
        elif before:
            parts.append("")
        before = label != -100
    return [part.removesuffix("<|im_end|>\n").removesuffix("<|im_end|>") for part in parts if part.strip()]


def test_traces(processor):
    template = get_template(processor, template_type="qwen2_5_vl", loss_scale="default")
    template.set_mode("train")
    wanted = json.loads((FOLDER / "wanted.json").read_text())
    found = rows("sft.jsonl")
    assert len(found) == len(wanted) == 2
    for row, texts in zip(found, wanted.values(), strict=True):
        made = template.encode(dict(row))
        assert learnt(processor, made) == texts
        assert len(made["image_grid_thw"]) == len(row["images"]) >= 2


def test_pairs(processor):
    """What both sides have in common is not learnt; each side has its own images."""
    template = get_template(processor, template_type="qwen2_5_vl", loss_scale="default")
    template.set_mode("rlhf")
    lines = [json.loads(line) for line in (OUTPUT / "pairs.jsonl").read_text().splitlines()]
    found = rows("pairs.jsonl")
    assert len(found) == len(lines) == 2
    for row, line in zip(found, lines, strict=True):
        made = template.encode(dict(row))
        for side, prefix in (("chosen_", ""), ("rejected_", "rejected_")):
            messages = line[f"{prefix}messages"]
            own = [m["content"] for m in messages if m["role"] == "assistant" and m["loss"]]
            shared = [m["content"] for m in messages if m["role"] == "assistant" and not m["loss"]]
            assert shared and learnt(processor, made, side) == own
            assert len(made[f"{side}image_grid_thw"]) == len(line[f"{prefix}images"])
        assert made["chosen_image_grid_thw"].shape != made["rejected_image_grid_thw"].shape
