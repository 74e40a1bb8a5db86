"""verl's training worker in one process on a CPU, with an engine of ours or its own, and the rows it gets.

`benchmarks/verl_engine.py` times what the tests compare.
"""

import os
from functools import partial

import torch
from tensordict import TensorDict
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLModel,
)
from verl.trainer.config import CheckpointConfig
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

ENGINE = {
    "strategy": "fsdp2", "model_dtype": "fp32", "mixed_precision": {"param_dtype": "fp32"},
    "use_torch_compile": False, "use_dynamic_bsz": False,
}  # fmt: skip
ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29631",
}


FORWARDS = {kind: kind.forward for kind in (Qwen2_5_VLModel, Qwen2_5_VLForConditionalGeneration)}


def stand_alone(monkeypatch):
    """Let all that a worker changes in this process end with a test: variables, and transformers' models."""
    for name in (*ALONE, "VERL_ENGINE_VENDOR"):
        monkeypatch.setenv(name, "")
    for kind, forward in FORWARDS.items():
        monkeypatch.setattr(kind, "forward", forward)


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def llama_folder(folder, words, width, intermediate, layers, heads):
    """A fresh Llama with half as many key heads as query heads, and a tokenizer that verl can load."""
    config = LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="w1", pad_token="w0").save_pretrained(folder)
    return str(folder)


def worker(path, vendor, loss, model=None, rate=1e-3, **engine):
    """A worker that learns by ``loss``, with the engine of a vendor; "none" is verl's own."""
    os.environ |= ALONE | {"VERL_ENGINE_VENDOR": vendor}
    given = {"use_remove_padding": False, "override_config": {"attn_implementation": "sdpa"}} | (model or {})
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(path=path, **given),
            engine_config=FSDPEngineConfig(**ENGINE | engine),
            optimizer_config=FSDPOptimizerConfig(lr=rate, total_training_steps=1000),
            checkpoint_config=CheckpointConfig(),
        )
    )
    made.reset()
    made.set_loss_fn(partial(loss, config=None))
    return made


def batch(prompts, responses, positions=None):
    """Rows as verl's trainer hands them to its engine; the positions of text by default."""
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    data = TensorDict({}, batch_size=len(rows))
    data["input_ids"], data["prompts"], data["responses"] = nested(rows), nested(prompts), nested(responses)
    data["position_ids"] = (
        nested([torch.arange(len(row)) for row in rows]) if positions is None else positions
    )
    data["loss_mask"] = nested([torch.ones(len(row), dtype=torch.long) for row in rows])
    return data


def image_positions(model, rows, grids):
    """Positions of rows of prompt and response with one image each, as verl's agent loop makes them."""
    places = []
    for row, grid in zip(rows, grids, strict=True):
        kinds = (row[None] == model.config.image_token_id).int()
        axes, _ = model.model.get_rope_index(row[None], mm_token_type_ids=kinds, image_grid_thw=grid)
        places.append(torch.cat([torch.arange(len(row))[None], axes[:, 0]]))
    ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(torch.cat(places, dim=1), ends, jagged_dim=2)
