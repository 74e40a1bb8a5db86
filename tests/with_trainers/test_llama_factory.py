"""The real LLaMA-Factory opens our export, by its own ``dataset_info.json``."""

import json
import os
from pathlib import Path

from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
from llamafactory.hparams import get_train_args
from llamafactory.model import load_tokenizer

FOLDER = Path(os.environ["EXPORTS"])


def opened(stage, name, tmp_path):
    """LLaMA-Factory's rows, as its trainer of that stage gets them, and its tokenizer."""
    more = {"pref_beta": 0.1} if stage == "dpo" else {}
    model, data, training, _, _ = get_train_args(
        {
            "model_name_or_path": str(FOLDER / "model"), "template": "qwen2_vl", "stage": stage,
            "do_train": True, "dataset_dir": str(FOLDER / "llama-factory"), "dataset": name,
            "media_dir": str(FOLDER / "llama-factory"), "output_dir": str(tmp_path), "cutoff_len": 4096,
            "finetuning_type": "full", "report_to": "none", "overwrite_cache": True, "use_cpu": True, **more,
        }
    )  # fmt: skip
    module = load_tokenizer(model)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data)
    made = get_dataset(template, model, data, training, stage="rm" if stage == "dpo" else stage, **module)
    return made["train_dataset"], module["tokenizer"]


def learnt(tokenizer, labels):
    return tokenizer.decode([label for label in labels if label != -100])


def test_traces(tmp_path):
    found, tokenizer = opened("sft", "looks_sft", tmp_path)
    wanted = json.loads((FOLDER / "wanted.json").read_text())
    assert len(found) == len(wanted) == 2
    for row, texts in zip(found, wanted.values(), strict=True):
        assert learnt(tokenizer, row["labels"]).replace("<|im_end|>\n", "|").split("|")[:-1] == texts
        assert len(row["images"]) >= 2


def test_pairs(tmp_path):
    found, tokenizer = opened("dpo", "looks_pairs", tmp_path)
    lines = (FOLDER / "llama-factory" / "looks_pairs.jsonl").read_text().splitlines()
    assert len(found) == len(lines) == 2
    for row, line in zip(found, map(json.loads, lines), strict=True):
        for side in ("chosen", "rejected"):
            assert learnt(tokenizer, row[f"{side}_labels"]).startswith(line[side]["content"])
