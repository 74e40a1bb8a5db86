"""TRL's side of `agent_rollouts.py`: the tool loop of its `GRPOTrainer` with our phone as environment."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from agent_world import Screens
from datasets import Dataset
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from selfverify.connectors.pool import LocalSource
from selfverify.core.problem import Problem
from selfverify.integrations.trl import TrlEnvironments


class Forced(LogitsProcessor):
    """Lets the model say what is given, whatever it has computed."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.script = (token for turn in turns for token in turn)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, next(self.script)] += 1e6
        return scores


class TrlAgents:
    """Rollouts by TRL's trainer.

    Args:
        trainer: Made by `trl_agents`.
        rows: The rows of one batch, as TRL repeats them.
        turns: What the model says.
    """

    def __init__(self, trainer: Any, rows: Sequence[dict[str, Any]], turns: Sequence[Sequence[int]]) -> None:
        self.trainer, self.rows, self.turns = trainer, rows, turns
        self._generate = trainer.model.generate

    def roll_out(self) -> dict[str, Any]:
        """Make one batch of rollouts, with their rewards and advantages.

        Raises:
            SystemExit: Something else was said, or not in all turns.
        """
        forced = LogitsProcessorList([Forced(self.turns)])
        self.trainer.model.generate = lambda **more: self._generate(**more, logits_processor=forced)
        made: dict[str, Any] = self.trainer._generate_and_score_completions(self.rows)
        said = made["completion_ids"][made["completion_mask"].bool() & made["tool_mask"].bool()]
        expected = torch.tensor([token for turn in self.turns for token in turn]).repeat(len(self.rows))
        if not torch.equal(said, expected):
            raise SystemExit(f"TRL's rollouts have {len(said)} tokens of the policy, not {len(expected)}")
        return made


@contextmanager
def trl_agents(
    folder: str,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    group: int,
    turns: Sequence[Sequence[int]],
    screen: int,
    delay_s: float,
) -> Iterator[TrlAgents]:
    """A trainer whose batches are ``group`` rollouts of each problem."""
    size = len(problems) * group
    tokenizer.response_template = qwen3_template  # how it reads calls
    rows = [
        {
            "prompt": p.messages,
            "task": json.dumps(p.target["reset"]),
            "seed": p.target["seed"],
        }
        for p in problems
    ]
    source = LocalSource(lambda: Screens(tokenizer, screen, delay_s), size)
    with tempfile.TemporaryDirectory() as out, TrlEnvironments([source], score=lambda *_: 0.0) as factory:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=size,
            num_generations=group,
            max_completion_length=len(turns) * (len(turns[0]) + 2 * screen),
            max_tool_calling_iterations=len(turns) - 1,
            generation_kwargs={"max_new_tokens": len(turns[0])},
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=folder,
            args=config,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=[],
            processing_class=tokenizer,
            environment_factory=factory,
        )
        yield TrlAgents(trainer, [row for row in rows for _ in range(group)], turns)
