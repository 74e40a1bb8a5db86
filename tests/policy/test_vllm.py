"""Sampling by vLLM through TRL's real client, against a stand-in for the server (`tests/vllm_standin.py`)."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from pydantic import ValidationError

import vllm_standin
from killed_runs import finish, start
from rounding import assert_close
from selfverify.core import ranks
from selfverify.core.config import SamplingConfig, VLLMConfig
from selfverify.core.errors import ConfigError, SamplingError
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.experiments.registry import make_task
from selfverify.policy import loading, vllm
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import VLLMEngine, require_vllm
from selfverify.tasks.base import user_turn
from selfverify.trainer.parallel import make_accelerator
from served import free_port
from tables import yaml_cases
from tiny_models import disturb
from vllm_standin import Server, standing_in

SAMPLING = SamplingConfig(group_size=3, temperature=0.8, top_p=1.0, max_new_tokens=6).model_copy(
    update={"engine": "vllm"}
)


def begun(policy: Policy, server: Server, **settings: Any) -> Policy:
    """A policy that the server samples for."""
    config = server.config.model_copy(update=settings)
    policy.engine = VLLMEngine(policy, Accelerator(cpu=True), config)
    return policy


def drawn(
    policy: Policy, problems: Sequence[Problem], sampling: SamplingConfig = SAMPLING
) -> list[list[Sample]]:
    return policy.sample(policy.encode(problems), sampling, seeds=range(len(problems)))


@pytest.fixture
def server(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """`vllm serve` of the tiny policy."""
    with standing_in(monkeypatch, tiny_folder) as found:
        yield found


@pytest.fixture
def policy(server: Server, load_policy: Any) -> Policy:
    """A policy that the server samples for."""
    return begun(load_policy(), server)


def log_excess(policy: Policy, problems: Sequence[Problem], groups: list[list[Sample]]) -> torch.Tensor:
    """How far the samples' log-probs exceed those of ``policy`` at `SAMPLING`'s temperature, per token.

    Under the ban of image tokens, which a tiny random model likes well enough to be seen.
    """
    tokens = [[sample.tokens for sample in group] for group in groups]
    places = torch.tensor(
        [(b, i, t) for b, group in enumerate(tokens) for i, row in enumerate(group) for t in range(len(row))]
    )
    banned = torch.tensor(policy.suppressed_tokens).expand(len(places), -1)
    with torch.no_grad():
        values, others = policy.logprobs_and_choices(
            policy.encode(problems), tokens, places, banned, temperature=0.8
        )
    learners = values[places.unbind(-1)] - torch.log1p(-others.exp().sum(-1))
    engines = [value for group in groups for sample in group for value in sample.logprobs]
    return torch.tensor(engines) - learners


def assert_is_policys(policy: Policy, problems: Sequence[Problem], groups: list[list[Sample]]) -> None:
    """The samples' log-probs are those of ``policy``."""
    assert log_excess(policy, problems, groups).abs().max() < 2e-4


def test_samples_are_those_of_the_newest_weights(
    server: Server, policy: Policy, problems: list[Problem]
) -> None:
    """They go over once per update, through the queue that stands for NCCL; all else is HTTP."""
    before = drawn(policy, problems)
    assert [len(group) for group in before] == [3, 3, 3]
    for sample in (sample for group in before for sample in group):
        assert isinstance(sample, Sample) and len(sample.logprobs) == len(sample.tokens) <= 6
        stops = [i for i, token in enumerate(sample.tokens) if token in policy.stop_tokens]
        assert stops == ([len(sample.tokens) - 1] if sample.finish == "stop" else [])
        assert sample.finish == "stop" or len(sample.tokens) == 6
    assert_is_policys(policy, problems, before)
    drawn(policy, problems)
    assert server.core.loads == 1 == server.paths.count("/update_weights")
    assert server.paths.count("/reset_prefix_cache") == 1
    assert server.paths.count("/inference/v1/generate") == 6
    disturb(policy.model, 0.05)
    policy.engine.stale = True
    after = drawn(policy, problems)
    assert server.core.loads == 2 == server.paths.count("/reset_prefix_cache")
    assert_is_policys(policy, problems, after)
    with pytest.raises(AssertionError):
        assert_is_policys(policy, problems, before)
    assert_is_policys(policy, problems[1:2], drawn(policy, problems[1:2]))
    assert server.paths.count("/v1/completions") == 1
    policy.engine.close()


def move_tower(policy: Policy) -> None:
    """What an update of the vision tower does."""
    with torch.no_grad():
        for parameter in policy.loaded.family.vision_parameters(policy.model):
            parameter *= 1.1


def test_images_are_seen_by_the_newest_tower(
    server: Server, load_policy: Any, problems: list[Problem]
) -> None:
    """vLLM keeps the features of images; those of another tower it must not keep, not even of another run."""
    policy = begun(load_policy(train_vision=True), server)
    drawn(policy, problems)
    seen = len(server.core.images)
    move_tower(policy)
    policy.engine.stale = True
    assert_is_policys(policy, problems, drawn(policy, problems))
    assert len(server.core.images) == seen > 0
    frozen = begun(load_policy(), server)
    for _ in range(2):
        assert_is_policys(frozen, problems, drawn(frozen, problems))
        disturb(frozen.model, 0.05)
        frozen.engine.stale = True
    assert server.paths.count("/reset_encoder_cache") == 3


def test_server_of_another_precision_is_refused_unless_it_is_asked_for(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, load_policy: Any
) -> None:
    with standing_in(monkeypatch, tiny_folder, "bfloat16") as server:
        with pytest.raises(ConfigError, match=r"in bfloat16 and not in float32.*`--dtype float32`"):
            begun(load_policy(), server)
        begun(load_policy(), server, dtype="bfloat16").engine.close()


@pytest.mark.parametrize(("version", "fits"), [("0.21.2", False), ("0.22.0", True), ("0.31.1rc1", True),
                                               ("0.32.0", False), ("1.31.0", False)])  # fmt: skip
def test_versions_that_trl_does_not_speak_to_are_refused(
    server: Server, load_policy: Any, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    """Here and on a server, before anything is sampled."""
    server.version = version
    if fits:
        begun(load_policy(), server).engine.close()
    else:
        with pytest.raises(ConfigError, match=f"server's vLLM is {version}, .* works with 0.22 to 0.31"):
            begun(load_policy(), server)
    monkeypatch.setattr("vllm.__version__", version)
    with nullcontext() if fits else pytest.raises(ConfigError, match=f"that is installed is {version}"):
        require_vllm()
    monkeypatch.setattr(vllm, "version", lambda name: "1.17.0")
    require_vllm()


@pytest.mark.parametrize("tower", [False, True])
def test_adapter_is_merged_on_the_way(
    server: Server, load_policy: Any, problems: list[Problem], tower: bool
) -> None:
    policy = begun(load_policy(lora=AdapterConfig(rank=4), train_vision=tower), server)
    disturb(policy.model, 0.05)
    frozen = {name: p.clone() for name, p in policy.model.named_parameters()}
    assert_is_policys(policy, problems, drawn(policy, problems))
    merged = dict(policy.merged().model.named_parameters())
    held = dict(server.core.model.named_parameters())
    assert held.keys() == merged.keys()
    for name, tensor in merged.items():
        assert_close(held[name], tensor)
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, frozen[name])


def test_logprobs_are_those_after_top_p(policy: Policy, problems: list[Problem]) -> None:
    """vLLM's exceed the learner's by the logarithm of the nucleus's mass, at most -log top_p."""
    cut = SAMPLING.model_copy(update={"top_p": 0.6, "max_new_tokens": 12})
    groups = drawn(policy, problems, cut)
    excess = log_excess(policy, problems, groups)
    assert excess.min() > -2e-4 and excess.max() <= -math.log(0.6) + 2e-4
    assert excess.max() > 0.1


def test_a_prompt_that_was_read_otherwise_is_not_learnt_from(
    server: Server, policy: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = server.answer

    def shorter(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = answer(path, body)
        for choice in found.get("choices", []):
            choice["prompt_token_ids"] = choice["prompt_token_ids"][1:]
        return found

    monkeypatch.setattr(server, "answer", shorter)
    with pytest.raises(ConfigError, match=r"problem none: vLLM read its prompt as .* the learner would read"):
        drawn(policy, problems[1:2])


def test_no_image_token_is_learnt_from(policy: Policy, problems: list[Problem]) -> None:
    pad = policy.loaded.family.placeholder(policy.model)
    assert policy.engine._generation.generation_kwargs["logit_bias"].pop(pad) == -100
    policy.engine._generation.generation_kwargs["logit_bias"][pad] = 100.0
    with pytest.raises(ConfigError, match=f"problem one: vLLM wrote the image token {pad}"):
        drawn(policy, problems)


def test_unknown_logprobs_and_empty_responses(
    policy: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    [prompt] = policy.encode(problems[:1])
    answer = ([prompt.ids.tolist()] * 3, [[105, 106], [], [107]], [[[None], [-1.0]], [], [[-2.0]]], None)
    monkeypatch.setattr(policy.engine._generation, "generate", lambda **_: answer)
    [group] = policy.sample([prompt], SAMPLING, seeds=[0])
    assert math.isnan(group[0].logprobs[0]) and group[0].logprobs[1] == -1
    assert [sample.finish for sample in group] == ["length", "error", "length"]
    monkeypatch.setattr(policy.engine._generation, "generate", lambda **_: (*answer[:2], None, None))
    with pytest.raises(SamplingError, match="no log-probabilities"):
        policy.sample([prompt], SAMPLING, seeds=[0])


def run_process(folder: str, rank: int, port: str, output: Path) -> None:
    """One of two on a server: two problems with images in the first, one without images in the second."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks.start(cpu=True)
    server = Server(folder) if rank == 0 else None
    vllm_standin.install(pytest.MonkeyPatch(), server)
    with server.running() if server else nullcontext():
        policy = Policy.load(folder, device="cpu")
        where = server.config if server else VLLMConfig(server_base_url="http://127.0.0.1:9")
        sampling = SamplingConfig(engine="vllm", vllm=where, group_size=2, max_new_tokens=4, top_p=1.0)
        policy.engine = VLLMEngine(policy, make_accelerator(policy), where)
        task = make_task("digits-pick")
        of_images = [task.problem("train", 0, index) for index in range(2)]
        rounds = (
            [of_images, of_images] if rank == 0 else [[Problem("text", user_turn("Say 7.", images=0))], []]
        )
        found = []
        for problems in rounds:
            prompts = policy.encode(problems)
            groups = policy.sample(prompts, sampling, seeds=[0] * len(problems))
            tokens = [[sample.tokens for sample in group] for group in groups]
            ours = policy.logprobs(prompts, tokens).tolist() if groups else []
            theirs = [[sample.logprobs for sample in group] for group in groups]
            found.append({"ids": [p.problem_id for p in prompts], "ours": ours, "theirs": theirs})
        output.write_text(json.dumps(found))
        ranks.gather(None)  # the server stays until all have been served


@pytest.mark.slow
def test_two_processes_get_their_own_answers(tmp_path: Path) -> None:
    """TRL's real gather and broadcast between two processes with different numbers of problems."""
    port, program = free_port(), Path(__file__)
    outputs = [tmp_path / f"{rank}.json" for rank in range(2)]
    words = [[loading.BUILTIN / "digits", rank, port, output] for rank, output in enumerate(outputs)]
    for process in [start(program, *each) for each in words]:
        finish(process)
    first, second = (json.loads(output.read_text()) for output in outputs)
    assert [len(found["theirs"]) for found in first] == [2, 2]
    assert [len(found["theirs"]) for found in second] == [1, 0]
    for found in first + second:
        for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
            assert len(theirs) == 2
            for mine, their in zip(ours, theirs, strict=True):
                assert mine[: len(their)] == pytest.approx(their, abs=1e-2)


def test_servers_images_of_another_size_are_refused(
    server: Server, policy: Policy, problems: list[Problem]
) -> None:
    server.core.processor.size = {"shortest_edge": 32 * 32 * 4, "longest_edge": 512 * 512}
    with pytest.raises(SamplingError, match="tokens of image 1 of a prompt that has"):
        drawn(policy, problems[:1])


def test_server_with_raw_logprobs_is_refused(server: Server, load_policy: Any) -> None:
    server.logprobs_mode = "raw_logprobs"
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        begun(load_policy(), server)


def test_server_that_is_gone(
    server: Server, policy: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "answer", lambda path, body: 1 / 0)
    with pytest.raises(SamplingError, match=r"vLLM has failed: .*ZeroDivision"):
        drawn(policy, problems[:1])


def test_marks_that_a_server_cannot_place(policy: Policy, problems: list[Problem]) -> None:
    prompts = policy.encode(problems[:1])
    prompts[0].images[0].text = f"<row>{prompts[0].images[0].text}"
    with pytest.raises(ConfigError, match=r"problem one: .*use sampling.engine=own"):
        policy.sample(prompts, SAMPLING, seeds=[0])


def test_vllm_is_not_installed(monkeypatch: pytest.MonkeyPatch, load_policy: Any) -> None:
    vllm_generation = pytest.importorskip("trl.generation.vllm_generation", exc_type=ImportError)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install 'selfverify\[vllm\]'"):
        require_vllm()
    policy = load_policy()
    with pytest.raises(ConfigError, match="in training and evaluations"):
        policy.sample(policy.encode([]), SAMPLING, seeds=[])


def test_refused_families_and_shards(server: Server, load_policy: Any) -> None:
    policy = load_policy()
    policy.loaded.family.shares_prompts = False
    with pytest.raises(ConfigError, match="use engine=own"):
        begun(policy, server)
    fsdp: Any = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with pytest.raises(ConfigError, match="cannot be merged out of shards"):
        VLLMEngine(load_policy(lora=AdapterConfig(rank=4)), fsdp, server.config)


@yaml_cases
def test_contradictions(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SamplingConfig(**settings)


if __name__ == "__main__":
    run_process(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
