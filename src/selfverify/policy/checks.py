"""What a policy checks once, before its numbers are relied on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import islice

import torch

from selfverify.errors import ConfigError
from selfverify.policy.encoding import Prompt
from selfverify.policy.forward import Continuations, Forward

logger = logging.getLogger(__name__)

# How far shared and plain log-probs may lie apart on a first batch before sharing is switched off.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25, torch.float16: 0.05}


def _tolerance(forward: Forward) -> float:
    return TOLERANCE.get(forward.model.dtype, 1e-4)


@torch.no_grad()
def check_head(forward: Forward, banned: Iterable[int], path: str) -> None:
    """A model may do to its logits what we don't know of, and all samples would be wrong.

    Args:
        forward: Of a model in evaluation mode.
        banned: Tokens that may mean something to it, such as placeholders.
        path: Names the model in the error.

    Raises:
        ConfigError: It does.
    """
    known = set(banned)
    vocabulary = range(forward.model.get_input_embeddings().num_embeddings)
    plain = list(islice((token for token in vocabulary if token not in known), 5, 9))
    # Autocast would compare the roundings of two ways to the same numbers.
    with torch.autocast(forward.device.type, enabled=False):
        worst = forward.check_head(torch.tensor(plain))
    if not worst <= 10 * _tolerance(forward):
        raise ConfigError(
            f"policy.path={path}: models of type {forward.model.config.model_type!r} do something to their "
            f"logits that is not known here (up to {worst:.2g}), so samples and log-probs would be wrong; "
            "please report the model"
        )


@torch.no_grad()
def sharing_agrees(
    forward: Forward, prompts: Sequence[Prompt], continuations: Continuations, chunk: int
) -> bool | None:
    """Whether log-probs with shared prompts equal the plain ones, on two prompts of a first batch.

    Args:
        forward: Of a model in evaluation mode.
        prompts: B prompts.
        continuations: Theirs.
        chunk: See `PolicyConfig.logprob_chunk`.

    Returns:
        None when there was no token to compare. Where they differ, a warning names the model.
    """
    few = Continuations(
        continuations.ids[:2, :2], continuations.lengths[:2, :2], [g[:2] for g in continuations.images[:2]]
    )
    with torch.autocast(forward.device.type, enabled=False):
        rows = [
            forward.token_logprobs(run(prompts[:2], few)[few.mask], few.ids[few.mask], 1.0, chunk)
            for run in (forward.hidden_shared, forward.hidden_plain)
        ]
    if not len(rows[0]):
        return None
    worst = float((rows[0] - rows[1]).abs().max())
    if worst <= _tolerance(forward):
        return True
    logger.warning(
        "%s: log-probs with a shared prompt differ from the plain forward by %.2g; "
        "sharing is off for this model, which makes it several times slower. Please report the model.",
        forward.model.config.model_type,
        worst,
    )
    return False
