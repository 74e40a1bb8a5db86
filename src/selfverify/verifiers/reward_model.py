"""External reward models as verifiers: sequence classifiers with one label, such as those of RewardBench."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming
from selfverify.core.problem import Problem, content_text
from selfverify.core.trajectory import Group
from selfverify.policy.loading import pick_device
from selfverify.verifiers.base import Scores, answers, no_scores

logger = logging.getLogger(__name__)

_ENDS = 2**20
"""Bytes at each end of a file of weights that tell it apart."""


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A `Verifier` whose score is the sigmoid of the model's only logit, in one forward pass per answer.

    It reads the conversation in its own chat template, with the answer without its score as the last turn.
    A tokenizer without a template gets question and answer as a pair of texts, as older reward models do. An
    answer that is longer than the model reads has no score.
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
                "trained from; a generating model judges as NAME=FOLDER, without --reward-model"
            )
        if model.config.num_labels != 1:
            raise ConfigError(
                f"reward model {name}: {path} has {model.config.num_labels} labels, and a reward has one"
            )
        return cls(model.to(place).eval(), tokenizer, name)

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier.score`.

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
            # Templates raise whatever their authors chose, and jinja its own errors.
            raise DataError(
                f"problem {problem.id}: the chat template of reward model {self.name} refuses it: {error}"
            ) from error
        return dict(self.tokenizer(text, add_special_tokens=False, return_tensors="pt"))


def reward_identity(path: str) -> str:
    """What tells a reward model's files apart: names, sizes, settings, and both ends of its weights.

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
