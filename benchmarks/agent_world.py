"""What `agent_rollouts.py` lets agents do: the same turns for everybody, on screens of one length."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from selfverify.agents.episode import AgentEpisode
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Call, StepResult
from selfverify.core.problem import Problem
from selfverify.policy.decoding import TokenSampler
from selfverify.policy.policy import Policy
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment
from selfverify_phone.fresh_model import text_tokenizer, write_tiny_text
from selfverify_phone.small_policy import corpus, phrases
from selfverify_phone.task import LOOKING, PhoneAgents, PhoneAgentsConfig

OPTIONS = PhoneConfig(text="terse", first_screen="given")
CALLS = (
    Call("launch", {"app": "clock"}),
    Call("get_current_xml"),
    Call("launch", {"app": "contacts"}),
    Call("home"),
    Call("launch", {"app": "maps"}),
    Call("wait", {"seconds": 1}),
)
"""Calls that the phone carries out whatever it shows; they are made in turn."""
START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = """\
{%- macro words(content) -%}
{%- if content is string %}{{ content }}{% else -%}
{%- for part in content %}{{ part.text }}{% endfor %}{% endif -%}
{%- endmacro -%}
{%- if tools -%}
<|im_start|>system\n{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>\n
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + words(message.content) -}}
{%- for call in message.tool_calls or [] -%}
<tool_call>\n{{ call.function | tojson }}\n</tool_call>
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
"""Tools are shown by their names alone, so that prompts are short."""


class Screens(PhoneEnvironment):
    """The phone, with screens of exactly so many tokens; a call may take its time.

    Args:
        tokenizer: Counts them.
        tokens: Long screens are cut, short ones filled up.
        delay_s: Seconds for which a call waits, without using the processor.
    """

    waits = True

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tokens: int, delay_s: float = 0.0) -> None:
        super().__init__(OPTIONS)
        self.delay_s = delay_s
        self._fit = _fitting(tokenizer, tokens)

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`."""
        return self._cut(await super().reset(task, seed))

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return self._cut(await super().step(call))

    def _cut(self, seen: StepResult) -> StepResult:
        seen.text = self._fit(seen.text)
        return seen


@lru_cache(maxsize=4)
def _fitting(tokenizer: PreTrainedTokenizerFast, tokens: int) -> Any:
    @lru_cache(maxsize=10_000)
    def fit(text: str) -> str:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        # A digit is a token, whatever stands before it.
        return tokenizer.decode(ids[:tokens]) + "7" * (tokens - len(ids))

    return fit


class Inline(Screens):
    """The same phone without an event loop."""

    waits = False


@dataclass
class Scripted(TokenSampler):
    """A voice that samples as ever, and then says what is given."""

    script: Iterator[int]

    def pick(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `TokenSampler.pick`."""
        tokens, logprobs, _ = TokenSampler.pick(self, logits, uniform)
        tokens.fill_(next(self.script))
        return tokens, logprobs, torch.isin(tokens, self.stop).cpu()


class Actor(Policy):
    """A policy that says the same turns in all conversations."""

    turns: Sequence[Sequence[int]] = ()

    def begin(self) -> None:
        """Begin at the first turn."""
        self._script = (token for turn in self.turns for token in turn)

    def voice(self, sampling: SamplingConfig) -> TokenSampler:
        """See `Policy.voice`."""
        made = super().voice(sampling)
        return Scripted(made.head, made.sampling, made.stop, made.suppressed, made.name, self._script)


class Work(PhoneAgents):
    """The phone's tasks on `Screens`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tokens: int, delay_s: float = 0.0) -> None:
        super().__init__(
            PhoneAgentsConfig.model_validate(
                {"text": "terse", "prompt": "task", "agent": {"first_screen": "given"}}
            )
        )
        self.make = lambda: (Screens if delay_s else Inline)(tokenizer, tokens, delay_s)

    def open(self, problem: Problem, seed: int) -> AgentEpisode:
        """See `Task.open`."""
        return AgentEpisode(
            problem,
            self.make,
            problem.target["reset"],
            problem.target["seed"],
            self.jury,
            self.config.agent,
            self.limits.turns,
            looking=LOOKING,
        )


def write_policy(folder: Path, seed: int, hidden: int, layers: int, context: int) -> Path:
    """A fresh text policy that knows the phone's words, and `TEMPLATE`."""
    tokenizer = text_tokenizer([*corpus(), TEMPLATE], phrases())
    tokenizer.add_tokens([START, END], special_tokens=True)
    tokenizer.eos_token = END
    tokenizer.chat_template = TEMPLATE
    return write_tiny_text(folder, tokenizer, seed, hidden, layers, context)


def scripted_turns(tokenizer: PreTrainedTokenizerFast, count: int, tokens: int) -> list[list[int]]:
    """Turns of exactly so many tokens: words, a call, and the end.

    Raises:
        SystemExit: A call alone takes more.
    """
    found = []
    for _, call in zip(range(count), cycle(CALLS)):
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
        said = tokenizer(f"\n<tool_call>\n{body}\n</tool_call>{END}", add_special_tokens=False)["input_ids"]
        if len(said) > tokens:
            raise SystemExit(f"a turn takes at least {len(said)} tokens")
        filler = tokenizer("7", add_special_tokens=False)["input_ids"] * (tokens - len(said))
        found.append([*filler, *said])
    return found
