"""Learning from what another engine has sampled: importance weights, mismatch figures, whole runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from killed_runs import rows
from rounding import assert_close
from selfverify.core import ranks
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Credit, Group, Segment, Trajectory
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.decoding import uniform_draws
from selfverify.policy.encoding import Prompt
from selfverify.policy.loading import BUILTIN
from selfverify.policy.policy import Policy
from selfverify.tasks.answering import SelfCorrection
from selfverify.trainer.batch import TokenStreams, make_streams
from selfverify.trainer.loss import UpdateMetrics
from updating import trainer_config, update
from vllm_standin import Server, standing_in

OWN = SamplingConfig(group_size=3, top_p=1.0, max_new_tokens=24)
SETTINGS = {"groups_per_step": 2, "optim__learning_rate": 1e-6, "loss__drop_zero_advantage": False}


# --- figures and weights, by hand -----------------------------------------------------------------------


def test_mismatch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios 1/2, 1 and 4; a token without log-prob and one that is not trained do not count."""
    found = UpdateMetrics()
    old = torch.log(torch.tensor([[0.2, 0.5, 0.8], [0.5, 0.1, 0.0001]]))
    sampler = torch.log(torch.tensor([[0.4, 0.5, 0.2], [torch.nan, 0.9, 0.9]]))
    trained = torch.tensor([[True, True, True], [True, False, False]])
    found.add_mismatch(old, sampler, trained, cap=2.0)
    two, four = torch.tensor([2.0, 4.0]).log().tolist()
    assert mismatch(found) == pytest.approx(
        {
            "mismatch/mean_abs": (two + four) / 3,
            "mismatch/max": four,
            "mismatch/ratio_mean": (0.5 + 1 + 4) / 3,
            "mismatch/truncated_share": 1 / 3,
        },
        rel=1e-4,
    )
    found.add_mismatch(old, sampler, torch.zeros_like(trained), cap=2.0)
    assert found.sums["mismatch/tokens"] == 3
    monkeypatch.setattr(ranks, "gather", lambda own: [own, UpdateMetrics(), own])
    assert mismatch(found.together()) == pytest.approx(mismatch(found))
    uncapped = UpdateMetrics()
    uncapped.add_mismatch(old, sampler, trained, cap=None)
    assert mismatch(uncapped)["mismatch/truncated_share"] == 0
    assert mismatch(UpdateMetrics()) == {}


def mismatch(totals: UpdateMetrics) -> dict[str, float]:
    return {name: value for name, value in totals.metrics().items() if name.startswith("mismatch/")}


def streams(policy: Policy, change: float, foreign: bool) -> TokenStreams:
    """One answer with two tokens, whose sampler's log-probs are the policy's plus ``change``."""
    problem = make_task("digits-pick").problem("train", 0, 0)
    [prompt] = policy.encode([problem])
    tokens = [[60, 61], [62, 63]]
    values = policy.logprobs([prompt], [tokens]).detach()[0] + change
    group = Group(
        problem,
        [
            Trajectory([Segment("answer", row, value.tolist(), finish="stop")])
            for row, value in zip(tokens, values, strict=True)
        ],
    )
    credit = Credit("answer", torch.tensor([1.0, -0.5]), valid=torch.tensor([True, True]))
    return make_streams(prompt, group, [credit], foreign)


def gradient(
    policy: Policy, batch: TokenStreams, old: Sequence[torch.Tensor] | None = None, **settings: Any
) -> tuple[torch.Tensor, UpdateMetrics]:
    """The gradient of one update, flat."""
    totals = update(policy, [batch], old=old, **settings)
    rows = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return torch.cat(rows), totals


@pytest.mark.parametrize(
    ("ratio", "cap", "weight"), [(0.5, 2.0, 0.5), (1.5, 2.0, 1.5), (4.0, 2.0, 2.0), (4.0, None, 1.0)]
)
def test_gradient_is_weighted(policy: Policy, ratio: float, cap: float | None, weight: float) -> None:
    """With one ratio at all tokens the whole gradient has the weight min(ratio, cap)."""
    change = -float(torch.tensor(ratio).log())
    plain, own = gradient(policy, streams(policy, change, foreign=False), loss__importance_cap=cap)
    found, totals = gradient(policy, streams(policy, change, foreign=True), loss__importance_cap=cap)
    assert plain.abs().max() > 0 and not mismatch(own)
    assert_close(found, weight * plain)
    assert totals.metrics()["mismatch/ratio_mean"] == pytest.approx(ratio, rel=1e-4)
    assert totals.metrics()["mismatch/truncated_share"] == float(cap is not None and ratio > cap)


def test_later_updates_compare_with_the_moment_of_sampling(policy: Policy) -> None:
    """The weight is old / sampler, not new / sampler, and is beside the clipped ratio new / old."""
    batch = streams(policy, 0.0, foreign=True)
    assert batch.sampler_logprobs_gr is not None
    old = batch.sampler_logprobs_gr + 0.1
    found, totals = gradient(policy, batch, [old])
    batch.foreign = False
    plain, _ = gradient(policy, batch, [old])
    factor = float(torch.tensor(0.1).exp())
    assert_close(found, factor * plain)
    assert totals.metrics()["mismatch/ratio_mean"] == pytest.approx(factor, rel=1e-4)


# --- whole runs -------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A stand-in for vLLM that draws with our sampler's random numbers."""
    seeds_of: dict[tuple[Any, ...], int] = {}

    def key(ids: list[int], images: list[Image.Image]) -> tuple[Any, ...]:
        return (*ids, *(image.tobytes() for image in images))

    def noted(policy: Policy, prompts: list[Prompt], sampling: SamplingConfig, *, seeds: list[int]) -> Any:
        seeds_of.update((key(p.ids.tolist(), p.pictures), s) for p, s in zip(prompts, seeds, strict=True))
        return plain(policy, prompts, sampling, seeds=seeds)

    plain = Policy.sample
    monkeypatch.setattr(Policy, "sample", noted)
    with standing_in(monkeypatch, BUILTIN / "digits") as found:
        found.core.uniform = lambda ids, images, group, steps: torch.stack(
            [uniform_draws(seeds_of[key(ids, images)], sample, 0, steps) for sample in range(group)]
        )
        yield found


def by(server: Server) -> SamplingConfig:
    return OWN.model_copy(update={"engine": "vllm", "vllm": server.config})


def test_a_run_with_vllm_is_the_run_with_our_own_sampler(server: Server, tmp_path: Path) -> None:
    """Same tokens, hence same rewards, and importance weights of 1: the weights end up the same."""
    ends = {}
    task = make_task("digits-pick")
    for name, sampling in (("own", OWN), ("vllm", by(server))):
        policy = Policy.load("builtin:digits", device="cpu")
        config = trainer_config(steps=2, batch__updates_per_rollout=2, batch__inner_epochs=2, **SETTINGS)
        learn(policy, task, make_method("adpo"), config, sampling, output=tmp_path / name)
        assert policy.engine is None
        ends[name] = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    own, other = rows(tmp_path / "own"), rows(tmp_path / "vllm")
    assert len(own) == len(other) == 2
    for mine, theirs in zip(own, other, strict=True):
        mismatch = {key: theirs.pop(key) for key in list(theirs) if key.startswith("mismatch/")}
        assert mismatch["mismatch/max"] < 1e-3 and mismatch["mismatch/ratio_mean"] == pytest.approx(
            1, abs=1e-4
        )
        assert 0 < mismatch["mismatch/mean_abs"] <= mismatch["mismatch/max"]
        assert mismatch["mismatch/truncated_share"] == 0
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    start = dict(Policy.load("builtin:digits", device="cpu").model.named_parameters())

    def moved(name: str) -> torch.Tensor:
        return torch.cat([(ends[name][key] - p.detach()).flatten() for key, p in start.items()]).double()

    # Adam gives a gradient that is all rounding a full step, in either direction: compare directions.
    assert torch.cosine_similarity(moved("own"), moved("vllm"), dim=0) > 0.999


class ShownAgain(SelfCorrection):
    """Asks again and shows the problem's image a second time."""

    def step(self, said: PolicyTurn) -> Observation:
        reply = super().step(said)
        reply.content = [{"type": "text", "text": "Look again."}, {"type": "image"}]
        reply.images = [self.problem.images[0].rotate(180)]
        return reply


def test_vllm_sees_what_environments_show(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image in mid-conversation: vLLM's probabilities behind it are those that the learner computes."""
    policy = Policy.load("builtin:digits", device="cpu")
    method = make_method("adapo", second_turn="Look again.", zero_advantage="adaptive")
    monkeypatch.setattr(
        method, "open", lambda task, problem, seed: ShownAgain(problem, task.tags, task.verdict)
    )
    config = trainer_config(**SETTINGS)
    learn(policy, make_task("digits-pick"), method, config, by(server), output=tmp_path)
    [row] = rows(tmp_path)
    assert server.core.calls == 2 + 6 and row["turns/missing"] < 1
    assert row["mismatch/max"] < 1e-2 and row["mismatch/ratio_mean"] == pytest.approx(1, abs=1e-3)


def test_vllm_gets_the_weights_of_every_step_and_of_a_resumed_run(server: Server, tmp_path: Path) -> None:
    """It reads the starting weights from disk; what was learnt before a restart it must be sent."""
    task = make_task("digits-pick")
    first, again = (Policy.load("builtin:digits", device="cpu") for _ in range(2))
    for policy, steps, loads in ((first, 2, 2), (again, 3, 3)):
        config = trainer_config(steps=steps, checkpoint__every=1, **SETTINGS)
        learn(policy, task, make_method("grpo"), config, by(server), output=tmp_path, resume=steps > 2)
        assert server.core.loads == loads
    # What the third step is sampled with is what the first two have learnt.
    held = dict(server.core.model.named_parameters())
    for name, parameter in first.model.named_parameters():
        assert torch.equal(held[name], parameter)


# --- recipes ----------------------------------------------------------------------------------------------


def test_recipe_refuses_what_vllm_would_not_know() -> None:
    vllm = ["sampling.engine=vllm", "sampling.vllm.server_base_url=http://127.0.0.1:9"]
    assert load_recipe("adpo-digits", vllm).sampling.engine == "vllm"
    with pytest.raises(ConfigError, match=r"policy\.max_pixels does not reach vLLM"):
        load_recipe("adpo-digits", [*vllm, "policy.max_pixels=4096"])
