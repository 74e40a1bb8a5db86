"""Update and log-probs on verl: its own FSDP engine against ours, which forwards a prompt once for a group.

Both engines run in one process on the same rows, in the environment with verl (`make verl` makes it)::

    PYTHONPATH=src:tests/with_verl VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=cpu_platform,cpu_engine \\
        .venv-verl/bin/python benchmarks/verl_engine.py
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.padding import no_padding_2_padding

import selfverify.integrations.verl.shared_engine  # noqa: F401
from selfverify.integrations.verl.launch import VENDOR

WORDS = 4096


def loss_of(
    config: Any, model_output: Any, data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The mean log-prob: which loss it is makes no difference to the time."""
    return -no_padding_2_padding(model_output["log_probs"], data).mean(), {}


def model_folder(width: int, layers: int) -> str:
    """A fresh Llama with a tokenizer that verl can load."""
    from tokenizers import Tokenizer, models

    folder = tempfile.mkdtemp()
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0").save_pretrained(folder)
    return folder


def worker(path: str, vendor: str, rows: int) -> TrainingWorker:
    """verl's training worker with the engine of a vendor."""
    os.environ |= {"VERL_ENGINE_VENDOR": vendor, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29637"}
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        model_dtype="fp32",
        mixed_precision={"param_dtype": "fp32"},
        use_torch_compile=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=rows,
        infer_micro_batch_size_per_gpu=rows,
    )
    model = HFModelConfig(
        path=path,
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(lr=1e-5, total_training_steps=1000),
            checkpoint_config=CheckpointConfig(),
        )
    )
    made.reset()
    made.set_loss_fn(partial(loss_of, config=None))
    return made


def batch(prompt: int, response: int, group: int, groups: int) -> TensorDict:
    """Groups of rows with the same prompt, as verl's trainer hands them to its engine."""

    def nested(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    prompts = [p for _ in range(groups) for p in [torch.randint(2, WORDS, (prompt,))] * group]
    responses = [torch.randint(2, WORDS, (response - i % 4,)) for i in range(len(prompts))]
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    data = TensorDict({}, batch_size=len(rows))
    data["input_ids"], data["prompts"], data["responses"] = nested(rows), nested(prompts), nested(responses)
    data["position_ids"] = nested([torch.arange(len(row)) for row in rows])
    data["loss_mask"] = nested([torch.ones(len(row), dtype=torch.long) for row in rows])
    tensordict_utils.assign_non_tensor(data, temperature=1.0)
    return data


def seconds(call: Any, repeats: int) -> float:
    """The shortest of some runs, after one that is not counted."""
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Print seconds and ratios for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    path = model_folder(given.width, given.layers)
    for prompt, response, group in ((106, 24, 8), (1024, 32, 16), (256, 256, 8)):
        found: dict[tuple[str, str], float] = {}
        for vendor in ("none", VENDOR):
            made = worker(path, vendor, group)
            data = batch(prompt, response, group, 2)
            tensordict_utils.assign_non_tensor(data, compute_loss=False)
            found[vendor, "log-probs"] = seconds(
                lambda m=made, d=data: m.infer_batch(d.clone()), given.repeats
            )
            data = batch(prompt, response, group, 2)
            found[vendor, "update"] = seconds(lambda m=made, d=data: m.train_batch(d.clone()), given.repeats)
        for name in ("log-probs", "update"):
            theirs, ours = found["none", name], found[VENDOR, name]
            print(
                f"prompt {prompt}, {group} answers of {response} tokens, {name}: "
                f"verl {theirs:.2f} s, shared {ours:.2f} s, ratio {theirs / ours:.2f}"
            )


if __name__ == "__main__":
    main()
