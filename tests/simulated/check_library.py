"""The library with its model on the simulated device: whatever is not moved there ends in an error.

The policy is on the machine's second device while the first is the current one, so that what is moved to a
device without its number is found, too. Results are compared with those on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families import write_family
from tests.policy import test_unknown_family
from tests.policy.conftest import noise_image
from tests.policy.test_families import SAMPLING, talk
from tests.trainer.test_loss import pair
from tests.updating import trainer_config, update
from torch import Tensor
from torch.utils._pytree import tree_map

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy import families
from selfverify.policy.forward import Forward
from selfverify.policy.policy import Policy
from selfverify.serving.config import ChoosingConfig, DrawsConfig
from selfverify.serving.solve import solve
from selfverify.tasks.base import Task, user_turn
from selfverify.tasks.digits import DigitsSum, DigitsSumConfig
from selfverify.trainer import loss as update_module
from selfverify.trainer.parallel import make_accelerator
from selfverify.verifiers.make_verifier import make_verifier
from simulated.device import load, waits

load()

DEVICE = "sim:1"
LEARNER = {
    "groups_per_step": 2,
    "optim__learning_rate": 1e-3,
    "loss__drop_zero_advantage": False,
    "checkpoint__every": 1,
}


def on_device(path: str | Path = "builtin:digits", **settings: Any) -> Policy:
    return Policy.load(str(path), device=DEVICE, **settings)


def on_cpu(path: str | Path = "builtin:digits", **settings: Any) -> Policy:
    return Policy.load(str(path), device="cpu", **settings)


def everything(policy: Policy) -> set[str]:
    """The devices of a policy's weights and tables."""
    return {str(t.device) for t in (*policy.model.parameters(), *policy.model.buffers())}


@pytest.fixture(autouse=True)
def the_first_device_stays_empty() -> Any:
    """The current device is the first one. What goes there was sent to a device without its number."""
    yield
    assert torch.sim.current_device() == 0


@pytest.fixture
def asked() -> list[Problem]:
    return [
        Problem("one", user_turn("Which digits are shown here?"), [noise_image(1, 48, 40)]),
        Problem("none", user_turn("Say 7.", images=0)),
    ]


# --- loading, sampling, log-probabilities ----------------------------------------------------------------


def test_a_device_that_is_not_there_is_refused() -> None:
    for name in ("sim:2", "cuda", "meta", "nonsense"):
        with pytest.raises(ConfigError, match=r"policy\.device"):
            Policy.load("builtin:digits", device=name)


CHUNKS = {"gemma3": 24, "idefics3": 8192, "llava_onevision": 24, "qwen3_vl": 24}


@pytest.mark.parametrize(("kind", "chunk"), CHUNKS.items())
def test_families(kind: str, chunk: int, asked: list[Problem], tmp_path: Path) -> None:
    """Conversations with images in the middle, log-probabilities, gradients, in small chunks or whole.

    One family's are compared with those on the CPU.
    """
    asked = [*asked, replace(asked[1], id="begun", environment_begins=True)]
    folder = write_family(kind, tmp_path)
    gradients, spoken = {}, {}
    for load_there in (on_device, *([on_cpu] if kind == "qwen3_vl" else [])):
        policy = load_there(folder, prefill_chunk=chunk)
        rows = talk(policy, asked)
        assert any(piece.images for group in rows for piece, _ in group)
        prompts = policy.encode(asked)
        said = [[piece for piece, _ in group] for group in rows]
        shared = policy.logprobs(prompts, said)
        policy.shares_prefix = False
        torch.testing.assert_close(policy.logprobs(prompts, said), shared, rtol=1e-3, atol=1e-3)
        assert shared.device == policy.device
        shared.sum().backward()
        spoken[policy.device.type] = [(piece.tokens, values) for group in rows for piece, values in group]
        gradients[policy.device.type] = policy.model.get_input_embeddings().weight.grad.cpu()
    if "cpu" not in spoken:
        return
    for (tokens, values), (others, theirs) in zip(spoken["cpu"], spoken["sim"], strict=True):
        assert tokens == others
        torch.testing.assert_close(torch.tensor(values), torch.tensor(theirs), rtol=1e-3, atol=1e-3)
    largest = float(gradients["cpu"].abs().max())
    torch.testing.assert_close(gradients["cpu"], gradients["sim"], rtol=1e-3, atol=1e-3 * largest)


@pytest.mark.parametrize("kind", ["gemma3_text", "granite"])
def test_text_families(kind: str, text_folders: dict[str, Path]) -> None:
    problem = Problem("none", user_turn("Say 7.", images=0))
    found = []
    for policy in (on_cpu(text_folders[kind]), on_device(text_folders[kind])):
        prompts = policy.encode([problem])
        for sampling in (SAMPLING, SamplingConfig(group_size=3, max_new_tokens=20, temperature=0)):
            [group] = policy.sample(prompts, sampling, seeds=[1])
            found.append([sample.tokens for sample in group])
        policy.logprobs(prompts, [[sample.tokens for sample in group]]).sum().backward()
    assert found[:2] == found[2:]


def test_an_unknown_family(asked: list[Problem], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Transformers' own generate draws from the device's generator, which is afterwards as it was before."""
    policy = on_device(test_unknown_family.folder.__wrapped__(tmp_path_factory))
    prompts, state = policy.encode(asked[:1]), torch.sim.get_rng_state(1)
    drawn = [
        [sample.tokens for sample in policy.sample(prompts, SAMPLING, seeds=[seed])[0]] for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.equal(torch.sim.get_rng_state(1), state)
    said = policy.threads(prompts, SAMPLING, seeds=[1]).generate(dict.fromkeys([(0, g) for g in range(3)], 0))
    assert [said[0, g].tokens for g in range(3)] == drawn[0]
    policy.logprobs(prompts, drawn[:1]).sum().backward()


def test_given_up_samples_and_a_cut_nucleus(tiny_folder: Path) -> None:
    problems = [make_task("digits-pick").problem("train", 0, index) for index in range(2)]
    found = []
    for policy in (on_cpu(tiny_folder), on_device(tiny_folder)):
        calls: list[int] = []

        def given_up(calls: list[int] = calls) -> list[int]:
            calls.append(1)
            return [1] if len(calls) > 3 else []

        sampling = SamplingConfig(group_size=3, max_new_tokens=6, top_p=0.8)
        groups = policy.sample(policy.encode(problems), sampling, seeds=[0, 1], given_up=given_up)
        found.append([[sample.tokens for sample in group] for group in groups])
    assert found[0] == found[1]
    assert max(len(row) for row in found[1][1]) == 4


def test_the_host_waits_once_for_a_token() -> None:
    """To know who goes on and whether top-p looked far enough; more where threads leave, or at the end."""
    policy = on_device()
    problems = [make_task("digits-pick").problem("train", 0, index) for index in range(4)]
    prompts = policy.encode(problems)
    counts = []
    for tokens in (2, 7):
        sampling = SamplingConfig(group_size=4, max_new_tokens=tokens, top_p=0.99)
        before = waits()
        policy.sample(prompts, sampling, seeds=range(4))
        counts.append(waits() - before)
    assert (counts[1] - counts[0]) / 5 <= 1, counts


# --- training --------------------------------------------------------------------------------------------


class Screens(Episode):
    """Shows an image after the first answer and is done after the second."""

    def __init__(self, task: Task, problem: Problem) -> None:
        self.task, self.problem, self.turns = task, problem, 0
        self.heard: set[str] = set()

    def step(self, said: PolicyTurn) -> Observation:
        self.turns += 1
        self.heard |= {*said.text}
        parts = [{"type": "text", "text": "Look again."}, {"type": "image"}]
        return Observation(parts, [noise_image(self.turns, 32, 32)], done=self.turns == 2)

    def result(self) -> EpisodeResult:
        formats = {"answer_format": 1.0, "score_format": 1.0, "score_opened": 0.0}
        return EpisodeResult({"answer": float(len(self.heard)), "correct": 1.0, **formats})


class Shown(DigitsSum):
    """`digits-sum` with a conversation."""

    name = "shown-sum"
    limits = RolloutLimits(turns=3)

    def open(self, problem: Problem, seed: int) -> Episode:
        return Screens(self, problem)


def train(
    device: str, folder: Path, steps: int, method: str, options: dict[str, Any], **changes: Any
) -> Policy:
    """Go on with the run in ``folder``; ``changes`` are of the learner, and of others where they say so."""
    torch.manual_seed(0)  # as in a process of its own
    policy = Policy.load(changes.pop("path", "builtin:digits"), device=device, **changes.pop("policy", {}))
    task = changes.pop("task", None) or make_task("digits-pick")
    sampling = SamplingConfig(**{"group_size": 3, "max_new_tokens": 40} | changes.pop("sampling", {}))
    learner = trainer_config(**{**LEARNER, "steps": steps, **changes})
    made, validation = make_method(method, **options), EvaluationConfig(problems=2, samples=2)
    return learn(
        policy, task, made, learner, sampling, output=folder, seed=2, resume=True, validation=validation
    )


EXPECTED = {"verification_credit": "expected"}
WHOLE = {"dtype": "bfloat16", "train_vision": True, "gradient_checkpointing": True}
APART = {"activation_offload": True, "shared_prefix": "off", "logprob_chunk": 7}
SEPARATE = {"batch__micro_batch_tokens": 60, "log__evaluate_every": 1, "optim__channels": "separate"}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "expected, KL, slices, apart": ("adpo", EXPECTED | {"kl": 0.01}, SEPARATE),
    "joint, masters, vision, checkpointing": ("sft", {}, {"log__channels_every": 1, "policy": WHOLE}),
    "offload, no sharing, chunks": ("sft", {}, {"policy": APART}),
}


@pytest.mark.parametrize("name", RUNS)
def test_training(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    method, options, changes = RUNS[name]
    # Demonstrations need no policy that has learnt to answer.
    path = {"path": str(tiny_folder)} if method == "sft" else {}
    trained = train(DEVICE, tmp_path, 1, method, options, **path, **changes)
    assert everything(trained) == {DEVICE}
    assert trained.fingerprint() != on_cpu(**path, **changes.get("policy", {})).fingerprint()


# With two updates each channel's moments are used again after the resumption.
DROPOUT = {
    "policy": {"lora": AdapterConfig(rank=4, dropout=0.2)}, "optim__channels": "alternate",
    "batch__updates_per_rollout": 2,
}  # fmt: skip
TALKS = {
    "task": Shown(DigitsSumConfig(count=2)), "sampling": {"max_new_tokens": 12},
    "batch__updates_per_rollout": 2, "loss__ratio": "trajectory", "loss__denominator": "trajectory",
    "checkpoint__rollout_log": "all", "policy": {"dtype": "bfloat16"},
}  # fmt: skip
RESUMED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "adapter with dropout, alternate": ("sft", {}, DROPOUT),
    "images in conversations, old log-probs, KL, ratios of trajectories, masters": (
        "grpo",
        {"kl": 0.01},
        TALKS,
    ),
}


@pytest.mark.parametrize("name", RESUMED)
def test_resuming(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    """A run that ends after its first step and is resumed ends with the bits of one that does not."""
    method, options, changes = RESUMED[name]
    changes = {**changes, "path": str(tiny_folder)}
    whole = train(DEVICE, tmp_path / "whole", 2, method, options, **changes)
    first = train(DEVICE, tmp_path / "parted", 1, method, options, **changes)
    parted = train(DEVICE, tmp_path / "parted", 2, method, options, **changes)
    assert everything(whole) == everything(parted) == {DEVICE}
    assert whole.fingerprint() == parted.fingerprint() != first.fingerprint()
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "parted")]
    assert lines[0] == lines[1]


def test_training_is_that_of_the_cpu(tiny_folder: Path, tmp_path: Path) -> None:
    weights = []
    for device in ("cpu", DEVICE):
        folder = tmp_path / device.replace(":", "-")
        policy = train(device, folder, 1, "sft", {}, path=str(tiny_folder), optim__betas=(0.5, 0.5))
        weights.append(torch.cat([p.detach().cpu().flatten() for p in policy.model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in on_cpu(tiny_folder).model.parameters()])
    here, there = (end - start for end in weights)
    # AdamW's first step has the size of the rate, whatever the gradient: tiny ones round to either sign.
    assert float(torch.cosine_similarity(here, there, dim=0)) > 0.99 and float(here.norm()) > 0


def test_the_device_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = on_device()
    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "index", lambda: 0)
    with pytest.raises(ConfigError, match=r"policy\.device=sim:1: process 0 of 2 trains on cpu"):
        make_accelerator(policy)


def test_pairs(tiny_folder: Path) -> None:
    """The objective pairwise, with images behind the prompt."""
    totals = []
    for policy in (on_cpu(tiny_folder), on_device(tiny_folder)):
        groups = [pair(policy, 0, (9, 12), True), pair(policy, 1, (20, 4), False, 2.0)]
        reference = policy.frozen_copy()
        totals.append(update(policy, groups, reference, objective="pairwise", batch__micro_batch_tokens=10))
        assert all(p.grad is None or p.grad.device == p.device for p in policy.model.parameters())
    assert totals[0].sums["loss"] == pytest.approx(totals[1].sums["loss"], rel=1e-4)
    foreign = pair(policy, 0, (9, 12), False)  # tokens of another engine
    foreign.foreign, foreign.sampler_logprobs_gr = True, torch.full(foreign.channel_gr.shape, -2.0)
    assert update(policy, [foreign], policy.frozen_copy()).sums["mismatch/tokens"] > 0


# --- measuring and answering -----------------------------------------------------------------------------


def test_second_turns_as_a_verifier() -> None:
    task = make_task("digits-pick")
    problem, found = task.problem("test", 0, 0), []
    for policy in (on_cpu(), on_device()):
        verifier = make_verifier("turns:2", policy, task)
        choosing = ChoosingConfig(n=2, strategy="best")
        solution = solve(policy, task, problem, verifier, choosing, DrawsConfig(max_new_tokens=30))
        found.append([candidate.score for candidate in solution.candidates])
    assert found[0] == pytest.approx(found[1], abs=1e-3)


# --- what is forgotten is found --------------------------------------------------------------------------


def _to_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` whose tensors are on the CPU, as if it had forgotten to move them."""

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        return tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, function(*args, **kwargs))

    return forgetful


FORGOTTEN: dict[str, tuple[Any, str]] = {
    "prompts": (Forward, "stack_prompts"),
    "positions": (Forward, "continuation_positions"),
    "pixels": (families, "stacked"),
    "streams": (update_module, "stack"),
    "fixed log-probabilities": (update_module, "stack_known"),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_forgotten_move_is_found(name: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute = FORGOTTEN[name]
    monkeypatch.setattr(owner, attribute, _to_cpu(getattr(owner, attribute)))
    policy = on_device(tiny_folder)
    with pytest.raises((RuntimeError, DataError), match=r"same device|should be the same"):
        update(policy, [pair(policy, 0, (9, 12), False)], policy.frozen_copy())
