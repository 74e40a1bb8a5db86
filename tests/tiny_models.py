"""Small models that tests write as checkpoint folders, and policies that are made to like one token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.families import sharpen

from selfverify.policy.policy import Policy


def write_checkpoint(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Sharpen a fresh model and save it with its tokenizer, at whose end token it stops."""
    sharpen(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def disturb(model: Any, by: float = 0.1, seed: int = 3) -> None:
    """Move what is trained of a model, as updates would."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def boosted(policy: Policy, by: float, token: str | None = None) -> Policy:
    """Raise the logit of one token, the end token if none is named, at every place."""
    policy._check_head()  # of the real one
    tokenizer = policy.tokenizer
    index = tokenizer.eos_token_id if token is None else tokenizer.convert_tokens_to_ids(token)
    right = policy.head.logits

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden)
        return logits + by * torch.nn.functional.one_hot(torch.tensor(index), logits.shape[-1])

    policy.head.logits = head  # type: ignore[method-assign]
    return policy
