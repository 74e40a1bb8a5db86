"""TRL's trainers: our environments and our advantages in them, and two steps of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from datasets import Dataset
from transformers import AutoTokenizer, BatchFeature
from transformers.processing_utils import ProcessorMixin
from transformers.utils import get_json_schema

from rounding import assert_close
from selfverify.connectors.pool import LocalSource
from selfverify.core.errors import ConfigError, DataError
from selfverify.objectives import group_advantage, preference_reward
from selfverify.policy.tiny_models import tiny_image_processor, tiny_tokenizer
from tables import yaml_cases
from tiny_environment import TOOLS, Counter, described

trl = pytest.importorskip("trl", exc_type=ImportError)

from selfverify.integrations.trl import TrlEnvironments, _with_tools  # noqa: E402


@pytest.fixture(autouse=True)
def own_accelerator() -> Iterator[None]:
    """TRL turns mixed precision on for the whole process, where later tests' learners would find it."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


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
    assert environment.get_reward() == 0.0  # nothing was paid in this one


def test_what_environments_never_pay_is_no_reward(factory: TrlEnvironments) -> None:
    """Functions of one's own may be all that rewards there; where others are paid, nothing is 0."""
    first: Any = factory()
    second: Any = factory()
    for one in (first, second):
        one.reset(task={"goal": 5})
    assert first.get_reward() is None
    first.reset(task={"goal": 5})
    first.add(number=1)
    assert (first.get_reward(), second.get_reward()) == (1.0, 0.0)


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


# --- ADPOTrainer: our advantages in TRL's loss --------------------------------------------------------------


ANSWERS = ["7", "7", "3", "4"]
SCORES = ["0.9", "0.2", "0.4", "much"]


def completion(answer: str, score: str) -> str:
    return f"<think>1+2</think><answer>{answer}</answer><score>{score}</score><|im_end|>"


def right(completions: list[str], **kwargs: Any) -> list[float]:
    """1 for a 7."""
    return [float("<answer>7<" in text) for text in completions]


@pytest.fixture
def trainer(text_folders: dict[str, Path], tmp_path: Path) -> Any:
    """Makes a trainer of the tiny Llama; ``canned`` completions take the place of sampled ones."""
    from selfverify.integrations.trl import ADPOTrainer

    def make(canned: bool = True, steps: int = 1, beta: float = 0.0, **options: Any) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(text_folders["llama"])

        def rollout(prompts: list[str], _: Any) -> dict[str, Any]:
            texts = [completion(a, s) for a, s in zip(ANSWERS, SCORES, strict=True)]
            texts = texts * (len(prompts) // len(texts))
            ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
            return {
                "prompt_ids": [tokenizer(p)["input_ids"] for p in prompts],
                "completion_ids": ids,
                "logprobs": None,
            }

        config = trl.GRPOConfig(
            output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=12, report_to=[], use_cpu=True, beta=beta, learning_rate=1e-3,
            logging_steps=1, save_strategy="no", **options.pop("config", {}),
        )  # fmt: skip
        return ADPOTrainer(
            model=str(text_folders["llama"]),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["1+6=", "3+4="] * 4}),
            reward_funcs=options.pop("functions", right),
            processing_class=tokenizer,
            rollout_func=rollout if canned else None,
            **options,
        )

    return make


def expected(gamma: float = 0.0, weight: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    quality = torch.tensor([1.0, 1.0, 0.0, 0.0])
    scores = torch.tensor([0.9, 0.2, 0.4, float("nan")])
    answer = group_advantage(quality + 0.1)
    verification = preference_reward(scores, quality, gamma) - torch.tensor([0.0, 0.0, 0.0, 0.1])
    return answer, weight * group_advantage(verification)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_answer_and_score_tokens_have_their_own_advantages(trainer: Any, weight: float) -> None:
    made = trainer(adpo={"score_weight": weight})
    made.model.train()
    batch = made._generate_and_score_completions([{"prompt": "3+4="}] * 8)
    answer, score = expected(weight=weight)
    for row in range(8):
        kept = batch["completion_mask"][row].bool()
        tokens = batch["completion_ids"][row][kept].tolist()
        text = made._tokenizer.decode(tokens)
        boundary = text.index("<score>") + len("<score>")
        opened = len(made._tokenizer(text[:boundary], add_special_tokens=False)["input_ids"])
        found = batch["advantages"][row]
        assert_close(found[:opened], answer[row % 4].expand(opened).float())
        rest = score[row % 4].expand(len(tokens) - opened).float()
        assert_close(found[opened : len(tokens)], rest)
    # One right answer above the wrong one, one below it; the malformed score is in no pair and pays.
    assert score[0] > 0 > score[3]


def tidy(completions: list[str], **kwargs: Any) -> list[float]:
    """A reward for markup, the second of equals."""
    return [float(i % 2) for i in range(len(completions))]


def test_markup_does_not_contrast(trainer: Any) -> None:
    made = trainer(functions=[right, tidy], judges=["right"])
    made.model.train()
    batch = made._generate_and_score_completions([{"prompt": "3+4="}] * 4)
    _, score = expected()
    answer = group_advantage(torch.tensor([1.0, 2.0, 0.0, 1.0]) + 0.1)
    assert_close(batch["advantages"][:, 0], answer.float())
    last = batch["completion_mask"].sum(1) - 1
    assert_close(batch["advantages"][torch.arange(4), last], score.float())


def test_it_trains_and_logs(trainer: Any) -> None:
    made = trainer(steps=2, beta=0.1)
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    made.train()
    assert any(not torch.equal(before[n], p) for n, p in made.model.named_parameters())
    rows = [row for row in made.state.log_history if "loss" in row]
    assert len(rows) == 2 and all(row["loss"] == row["loss"] for row in rows)
    assert rows[0]["adpo/verification/auc"] == pytest.approx(0.5)
    assert rows[0]["adpo/format/score"] == pytest.approx(0.75)
    assert rows[0]["adpo/reward/verification"] == pytest.approx((1 + 0 + 0.5) / 4)


@yaml_cases
def test_what_cannot_hold_is_refused(trainer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(**options)
