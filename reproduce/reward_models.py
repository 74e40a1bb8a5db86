"""Reward models as verifiers: sequence classifiers, and vision-language models with a value head."""

from __future__ import annotations

import hashlib
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
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem, content_text
from selfverify.core.trajectory import Group
from selfverify.policy.chat import chat_text
from selfverify.policy.encoding import longest_row
from selfverify.policy.loading import pick_device
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.verifiers.base import Scores, answers, no_scores

logger = logging.getLogger(__name__)

_ENDS = 2**20
"""Bytes at each end of a file of weights that tell it apart."""


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A `Verifier` whose score is the sigmoid of the model's only logit, in one forward pass per answer.

    The model is a sequence classifier with one label, such as those of RewardBench. It reads the conversation
    in its own chat template, with the answer without its score as the last turn. A tokenizer without a
    template gets question and answer as a pair of texts, as older reward models do. An answer that is longer
    than the model reads has no score.
    """

    model: Any
    tokenizer: Any
    name: str

    @classmethod
    def load(cls, path: str, name: str, device: str = "auto") -> RewardModel:
        """Load one from a folder.

        Raises:
            ConfigError: The folder holds none: no safetensors, no head that scores, or several labels.
        """
        place = pick_device(device)
        try:
            model, report = AutoModelForSequenceClassification.from_pretrained(
                path, use_safetensors=True, output_loading_info=True, dtype="auto", local_files_only=True
            )
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"reward model {name}: {path} holds no sequence classifier that can be read: {error}"
            ) from error
        if missing := sorted(report["missing_keys"]):
            raise ConfigError(
                f"reward model {name}: {path} has no weights {missing[0]}: it is what a reward model may be "
                "trained from; a generating model judges as NAME=FOLDER, and is no reward model"
            )
        if model.config.num_labels != 1:
            raise ConfigError(
                f"reward model {name}: {path} has {model.config.num_labels} labels, and a reward has one"
            )
        return cls(model.to(place).eval(), tokenizer, name)

    def score(self, groups: Sequence[Group]) -> Scores:
        """Return the model's rewards of readable answers.

        Raises:
            DataError: A problem has images, which the model does not read, or its chat template refuses it.
        """
        found = no_scores(groups)
        for group in groups:
            if group.problem.images:
                raise DataError(
                    f"problem {group.problem.id} has images, and reward model {self.name} reads text alone; "
                    "one that reads images is a vision-language model's folder with value_head.safetensors"
                )
        for b, g, text in answers(groups):
            found[b][g] = self._rate(groups[b].problem, g, text)
        return found

    def _rate(self, problem: Problem, number: int, answer: str) -> float | None:
        encoded = self._encoded(problem, answer)
        length, longest = encoded["input_ids"].shape[1], _longest(self.model, self.tokenizer)
        if longest is not None and length > longest:
            logger.warning(
                "answer %d of problem %s has no score: %d tokens, and reward model %s reads %d",
                number, problem.id, length, self.name, longest,
            )  # fmt: skip
            return None
        with torch.inference_mode():
            logits = self.model(**{key: value.to(self.model.device) for key, value in encoded.items()}).logits
        value = float(logits[0, 0].double())
        if math.isnan(value):
            raise DataError(f"reward model {self.name}: its logit of problem {problem.id} is no number")
        # In double precision: rewards of 20 and 30 have to stay apart.
        return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))

    def _encoded(self, problem: Problem, answer: str) -> dict[str, Any]:
        turns = [
            {"role": turn["role"], "content": content_text(turn.get("content") or "")}
            for turn in problem.messages
        ]
        if self.tokenizer.chat_template is None:
            asked = "\n".join(turn["content"] for turn in turns)
            return dict(self.tokenizer(asked, answer, return_tensors="pt"))
        turns.append({"role": "assistant", "content": answer})
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception as error:
            # Templates raise their authors' errors, and jinja its own.
            raise DataError(
                f"problem {problem.id}: the chat template of reward model {self.name} refuses it: {error}"
            ) from error
        return dict(self.tokenizer(text, add_special_tokens=False, return_tensors="pt"))


def reward_identity(path: str) -> str:
    """Return all that tells a reward model's files apart: names, sizes, settings, and both ends of its
    weights.

    Raises:
        ConfigError: There is no such folder with weights in safetensors.
        FileError: A file cannot be read.
    """
    folder = Path(path).expanduser()
    weights = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not weights:
        raise ConfigError(
            f"reward model {path}: it needs to be a folder with config.json and weights in safetensors"
        )
    digest = hashlib.blake2b((folder / "config.json").read_bytes(), digest_size=16)
    for file in weights:
        with naming(file), file.open("rb") as opened:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} ".encode() + opened.read(_ENDS))
            opened.seek(max(size - _ENDS, 0))
            digest.update(opened.read())
    return f"reward model {digest.hexdigest()}"


def _longest(model: Any, tokenizer: Any) -> int | None:
    known = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length]
    return min((int(n) for n in known if n is not None and 0 < n < 2**31), default=None)


VALUE_HEAD = "value_head.safetensors"
"""The file of the head, beside the model that it sits on."""
_WEIGHT, _BIAS = "v_head.summary.weight", "v_head.summary.bias"
_ANSWER = "THE-ANSWER"


@dataclass(frozen=True, slots=True)
class ValueHead:
    """A `Verifier` whose score is the sigmoid of a linear head on the last token's hidden state.

    The model is one that reads images, as TRL and LLaMA-Factory save it. It reads the conversation in its own
    chat template, images included, with the answer without its score as the last turn; a problem's answers
    share its prompt. An answer that is longer than the model reads has no score.

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
        """Return the head's values of readable answers.

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
        """Return the text that the chat template writes behind the last message."""
        turn: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": _ANSWER}]}
        ended = replace(problem, messages=[*problem.messages, turn])
        return chat_text(self.policy.loaded, ended, begun=False).rpartition(_ANSWER)[2]


def has_value_head(path: str) -> bool:
    """Whether a folder holds a model with a value head."""
    return (Path(path).expanduser() / VALUE_HEAD).is_file()
