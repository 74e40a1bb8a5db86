"""Reward models that read images: vision-language models with a value head, as TRL and LLaMA-Factory save."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Group
from selfverify.policy.chat import chat_text
from selfverify.policy.encoding import longest_row
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.verifiers.base import Scores, answers, no_scores

logger = logging.getLogger(__name__)

VALUE_HEAD = "value_head.safetensors"
"""The file of the head, beside the model that it sits on."""
_WEIGHT, _BIAS = "v_head.summary.weight", "v_head.summary.bias"
_ANSWER = "THE-ANSWER"


@dataclass(frozen=True, slots=True)
class ValueHead:
    """A `Verifier` whose score is the sigmoid of a linear head on the last token's hidden state.

    The model reads the conversation in its own chat template, images included, with the answer without its
    score as the last turn; a problem's answers share its prompt. An answer that is longer than the model
    reads has no score.

    Args:
        policy: The model below the head.
        weight: The head ``[H]``.
        bias: Its bias.
        name: See `Verifier`.
    """

    policy: Policy
    weight: Tensor
    bias: float
    name: str

    @classmethod
    def load(cls, path: str, name: str, config: PolicyConfig) -> ValueHead:
        """Load one from a folder.

        Args:
            path: The folder of a generating model, with `VALUE_HEAD` in it.
            name: See `Verifier`.
            config: How models are held in memory.

        Raises:
            CheckpointError: The model's weights do not fit.
            ConfigError: There is no such model, or the head is no linear one with one output.
        """
        file = Path(path).expanduser() / VALUE_HEAD
        try:
            head = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"reward model {name}: {file} cannot be read: {error}") from error
        policy = Policy.load(config.for_model(path))
        width = policy.model.config.get_text_config().hidden_size
        weight, bias = head.get(_WEIGHT), head.get(_BIAS, torch.zeros(1))
        if weight is None or weight.shape != (1, width) or bias.shape != (1,):
            shapes = json.dumps({key: list(value.shape) for key, value in head.items()})
            raise ConfigError(
                f"reward model {name}: {file} holds {shapes}, and a head on this model is {_WEIGHT} "
                f"[1, {width}] and {_BIAS} [1]"
            )
        return cls(policy, weight[0].float().to(policy.device), float(bias[0]), name)

    @torch.no_grad()
    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier.score`.

        Raises:
            DataError: A problem cannot be encoded, or the head's output is no number.
        """
        found = no_scores(groups)
        told: list[list[tuple[int, str]]] = [[] for _ in groups]
        for b, g, text in answers(groups):
            told[b].append((g, text))
        for b, own in enumerate(told):
            if not own:
                continue
            problem = replace(groups[b].problem, environment_begins=False)
            [prompt] = self.policy.encode([problem])
            end = self._end(problem)
            tokens = {g: self._tokens(text + end) for g, text in own}
            most = longest_row(self.policy.model)
            for g, ids in list(tokens.items()):
                if most is not None and len(prompt.ids) + len(ids) > most:
                    logger.warning(
                        "answer %d of problem %s has no score: it is longer than the %d tokens that reward "
                        "model %s reads", g, problem.id, most, self.name,
                    )  # fmt: skip
                    del tokens[g]
            if not tokens:
                continue
            # A state predicts what follows it; so that of the last token is one place further on.
            rows = self.policy.stack([[Continuation([*ids, 0]) for ids in tokens.values()]])
            hidden = self.policy.hidden_states([prompt], rows)[0]
            for n, (g, ids) in enumerate(tokens.items()):
                value = float(hidden[n, len(ids)].float() @ self.weight) + self.bias
                if math.isnan(value):
                    raise DataError(
                        f"reward model {self.name}: its value of problem {problem.id} is no number"
                    )
                found[b][g] = 1 / (1 + math.exp(-value)) if value >= 0 else 1 - 1 / (1 + math.exp(value))
        return found

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _end(self, problem: Problem) -> str:
        """What the chat template writes behind the last message."""
        turn: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": _ANSWER}]}
        ended = replace(problem, messages=[*problem.messages, turn])
        return chat_text(self.policy.loaded, ended, begun=False).rpartition(_ANSWER)[2]


def has_value_head(path: str) -> bool:
    """Whether a folder holds a model with a value head."""
    return (Path(path).expanduser() / VALUE_HEAD).is_file()
