"""Our environments in TRL's trainer: tools, screens with images, rewards, losses; and two steps of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import BatchFeature
from transformers.processing_utils import ProcessorMixin
from transformers.utils import get_json_schema

from rounding import assert_close
from selfverify.connectors.pool import LocalSource
from selfverify.core.errors import ConfigError, DataError
from selfverify.policy.tiny_models import tiny_image_processor, tiny_tokenizer
from tiny_environment import TOOLS, Counter, described

trl = pytest.importorskip("trl", exc_type=ImportError)

from selfverify.integrations.trl_environment import TrlEnvironments, _with_tools  # noqa: E402


@pytest.fixture
def factory() -> Iterator[TrlEnvironments]:
    with TrlEnvironments([LocalSource(Counter, 4)]) as made:
        yield made
    assert Counter.opened == []


def test_the_tools_are_those_of_the_environment() -> None:
    more = [
        described("look", ""),
        described(
            "draw",
            "Draw a line.\nReturns: nothing.",
            points={"type": "array", "items": {"type": "number"}, "description": "Where (choices: [1])."},
            style={"type": "object", "description": "How: at will."},
        ),
    ]
    more[1]["function"]["parameters"]["required"] = ["points"]
    kind = _with_tools([*TOOLS, *more])
    schemas = [get_json_schema(getattr(kind, name))["function"] for name in ("add", "fail", "look", "draw")]
    assert schemas[0] == TOOLS[0]["function"]
    assert schemas[1]["parameters"]["properties"]["how"]["enum"] == ["raise", "lose", "hang", "huge"]
    assert schemas[2] == {
        "name": "look",
        "description": "look",
        "parameters": {"type": "object", "properties": {}},
    }
    assert schemas[3]["description"] == "Draw a line. Returns nothing."
    assert schemas[3]["parameters"]["required"] == ["points"]
    assert schemas[3]["parameters"]["properties"]["points"]["items"] == {"type": "number"}
    for name in ("reset", "get_reward", "_hidden", "with space"):
        with pytest.raises(ConfigError, match="TRL cannot take"):
            _with_tools([described(name, "")])


def test_an_episode(factory: TrlEnvironments) -> None:
    environment: Any = factory()
    [text, image] = environment.reset(task={"goal": 5}, seed=1, prompt="add")
    assert text == {"type": "text", "text": "\n\n1 of 5"} and image["image"].size == (11, 8)
    [text, image] = environment.add(number=2)
    assert text["text"] == "3 of 5" and image["type"] == "image"
    assert environment.add(number="x") == "Error: there is no add like that\nstill 3"
    environment.add(number=2)
    assert environment.add(number=1) == "Error: the task is over."
    assert factory.leases == 1 and len(environment.observations) == 4
    assert environment.get_reward() == 4.0
    assert factory.leases == 0 and environment.get_reward() is None
    assert environment.reset(task='{"goal": 9}')[0]["text"] == "\n\n0 of 9"
    assert environment.get_reward() is None  # nothing was scored


@pytest.mark.parametrize("how", ["raise", "lose"])
def test_a_lost_environment_has_no_reward(factory: TrlEnvironments, how: str) -> None:
    environment: Any = factory()
    environment.reset(task={"goal": 5})
    environment.add(number=1)
    if how == "raise":
        with pytest.raises(ZeroDivisionError):  # what must not happen is not hidden
            environment.fail(how=how)
        return
    assert environment.fail(how=how) == "Error: the environment is lost." == environment.add(number=1)
    assert environment.lost == "the counter is broken" and environment.get_reward() is None
    assert environment.reset(task={"goal": 5}) and not environment.lost


def test_scores_of_ones_own() -> None:
    def score(seen: list[Any], state: Any) -> float:
        return len(seen) + state["count"] / 10

    with TrlEnvironments([LocalSource(Counter, 1)], score=score) as factory:
        environment: Any = factory()
        environment.reset(task={"goal": 5}, seed=3)
        environment.add(number=1)
        assert environment.get_reward() == 2.4


def test_what_the_caller_gets_wrong(factory: TrlEnvironments) -> None:
    environment: Any = factory()
    for task, why in (("{", "no JSON"), ([1], "no object"), ({}, "goal is no number")):
        with pytest.raises(DataError, match=why):
            environment.reset(task=task)
    assert factory.leases == 0
    environments: list[Any] = [factory() for _ in range(5)]
    for one in environments[:4]:
        one.reset(task={"goal": 5})
    with pytest.raises(ConfigError, match="more than 4 environments at once"):
        environments[4].reset(task={"goal": 5})


class Sees(ProcessorMixin):  # type: ignore[misc]
    """Qwen2.5-VL's processor without its videos, for which it wants torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    def __call__(
        self, images: Any = None, text: Any = None, videos: Any = None, **kwargs: Any
    ) -> BatchFeature:
        kwargs.pop("fps", None)
        tensors = kwargs.pop("return_tensors", None)
        texts = [text] if isinstance(text, str) else list(text)
        images = [image for row in images or () for image in (row if isinstance(row, list) else [row])]
        seen = dict(self.image_processor(images=images, return_tensors="pt")) if images else {}
        sizes = iter((seen["image_grid_thw"].prod(1) // 4).tolist()) if images else iter(())
        pad = "<|image_pad|>"
        for row, one in enumerate(texts):
            parts = one.split(pad)
            texts[row] = parts[0] + "".join(pad * next(sizes) + part for part in parts[1:])
        kwargs = {key: kwargs[key] for key in ("padding", "add_special_tokens") if key in kwargs}
        found = self.tokenizer(texts, **kwargs, return_tensors=tensors)
        return BatchFeature({**found, **seen})


class Canned:
    """Takes sampling's place: each rollout calls tools and then ends. One loses its environment."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def turn(self, prompt_ids: list[list[int]], *_: Any, num_generations: int = 1, **__: Any) -> Any:
        tokenizer = self.trainer._tokenizer
        texts = []
        for row, ids in enumerate(prompt_ids):
            if "<tool_response>" in tokenizer.decode(ids).partition("assistant")[2]:
                texts.append("7<|im_end|>")
                continue
            name, arguments = ("fail", {"how": "lose"}) if row % 4 == 3 else ("add", {"number": row % 4})
            call = json.dumps({"name": name, "arguments": arguments})
            texts.append(f"<tool_call>\n{call}\n</tool_call><|im_end|>")
        return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts], None


def test_two_steps_of_trls_trainer(tiny_folder: Path, tmp_path: Path) -> None:
    """Screens become tokens with images, rewards are the environment's, a lost rollout moves nothing."""
    from trl.chat_template_utils import qwen3_vl_chat_template

    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = "left"
    processor = Sees(tiny_image_processor(), tokenizer, qwen3_vl_chat_template)
    rows = [{"prompt": [{"role": "user", "content": "1+2"}], "task": json.dumps({"goal": 50})}] * 8
    config = trl.GRPOConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, num_generations=4,
        max_completion_length=512, max_tool_calling_iterations=3, report_to=[], use_cpu=True,
        learning_rate=1e-3, logging_steps=1, save_strategy="no",
    )  # fmt: skip
    with TrlEnvironments([LocalSource(Counter, 4)]) as factory:
        trainer = trl.GRPOTrainer(
            model=str(tiny_folder),
            args=config,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=[],
            processing_class=processor,
            environment_factory=factory,
        )
        trainer._generate_single_turn = Canned(trainer).turn
        batches: list[dict[str, Any]] = []
        scored = trainer._generate_and_score_completions
        trainer._generate_and_score_completions = lambda inputs: batches.append(scored(inputs)) or batches[-1]
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
    assert Counter.opened == []
    assert any(not torch.equal(before[name], p) for name, p in trainer.model.named_parameters())
    rows_logged = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows_logged) == len(batches) == 2
    rewards = torch.tensor([0.0, 1.0, 2.0])
    advantages = (rewards - 1) / (rewards.std() + 1e-4)
    for batch, row in zip(batches, rows_logged, strict=True):
        assert row["rewards/Environment/mean"] == pytest.approx(1.0)
        found = batch["advantages"]
        assert_close(found[:3].flatten(), advantages)
        assert found[3].abs().max() == 0
        # The screens of the reset and of the call, each as one image with its tokens.
        assert batch["num_images"] == [2, 2, 2, 1]
