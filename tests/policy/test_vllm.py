"""Sampling by vLLM through TRL, against a stand-in for vLLM's side (`tests/vllm_standin.py`)."""

from __future__ import annotations

import json
import math
import os
import subprocess
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
from rounding import assert_close
from selfverify.core.config import SamplingConfig, VLLMConfig
from selfverify.core.errors import ConfigError, SamplingError
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.policy import loading, vllm
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import VLLMEngine, require_vllm
from served import free_port
from vllm_standin import LLM, Server

pytest.importorskip("trl.generation.vllm_generation", exc_type=ImportError)

SAMPLING = SamplingConfig(
    engine="vllm", group_size=3, temperature=0.8, top_p=1.0, max_new_tokens=6, vllm=VLLMConfig()
)


def begun(policy: Policy, sampling: SamplingConfig = SAMPLING) -> Policy:
    """With an engine in this process alone."""
    policy.engine = VLLMEngine(policy, Accelerator(cpu=True), sampling)
    return policy


def drawn(
    policy: Policy, problems: Sequence[Problem], sampling: SamplingConfig = SAMPLING
) -> list[list[Sample]]:
    return policy.sample(policy.encode(problems), sampling, seeds=range(len(problems)))


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is there, in this process."""
    vllm_standin.install(monkeypatch)


@pytest.fixture
def server(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """`vllm serve` of the tiny policy."""
    pytest.importorskip("requests")
    serving = Server(str(tiny_folder))
    vllm_standin.install(monkeypatch, serving)
    with serving.running():
        yield serving


@pytest.fixture
def policy(standin: None, load_policy: Any) -> Policy:
    """A policy that vLLM samples from, in this process."""
    return begun(load_policy())


def on_server(server: Server, **settings: Any) -> SamplingConfig:
    """`SAMPLING` by that server."""
    where = VLLMConfig(mode="server", server_base_url=server.url, server_timeout_s=5)
    return SAMPLING.model_copy(update={"vllm": where, **settings})


def shift(policy: Policy, by: float = 0.05) -> None:
    """What an update does."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter += by * torch.randn(parameter.shape, generator=generator)


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


def test_samples_have_the_shape_of_our_own(policy: Policy, problems: list[Problem]) -> None:
    groups = drawn(policy, problems)
    assert [len(group) for group in groups] == [3, 3, 3]
    ends = set()
    for sample in (sample for group in groups for sample in group):
        assert isinstance(sample, Sample) and len(sample.logprobs) == len(sample.tokens) <= 6
        stops = [i for i, token in enumerate(sample.tokens) if token in policy.stop_tokens]
        assert stops == ([len(sample.tokens) - 1] if sample.finish == "stop" else [])
        assert sample.finish == "stop" or len(sample.tokens) == 6
        ends.add(sample.finish)
    assert_is_policys(policy, problems, groups)
    [llm] = LLM.made
    assert llm.core.calls == [9]


def test_weights_go_over_once_per_update(policy: Policy, problems: list[Problem]) -> None:
    core = LLM.made[0].core
    before = drawn(policy, problems)
    count = core.loads
    drawn(policy, problems)
    assert core.loads == count == len(list(policy.model.named_parameters())) and LLM.made[0].resets == 1
    shift(policy)
    policy.engine.stale = True
    after = drawn(policy, problems)
    assert core.loads == 2 * count and LLM.made[0].resets == 2
    assert_is_policys(policy, problems, after)
    with pytest.raises(AssertionError):
        assert_is_policys(policy, problems, before)


def move_tower(policy: Policy) -> None:
    """What an update of the vision tower does."""
    with torch.no_grad():
        for parameter in policy.loaded.family.vision_parameters(policy.model):
            parameter *= 1.1


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_images_are_seen_by_the_newest_tower(
    server: Server, load_policy: Any, problems: list[Problem], mode: str
) -> None:
    """vLLM keeps the features of images; those of another tower it must not keep."""
    sampling = SAMPLING if mode == "colocate" else on_server(server)
    policy = begun(load_policy(train_vision=True), sampling)
    core = LLM.made[0].core if mode == "colocate" else server.core
    drawn(policy, problems, sampling)
    seen = len(core.images)
    move_tower(policy)
    policy.engine.stale = True
    assert_is_policys(policy, problems, drawn(policy, problems, sampling))
    assert len(core.images) == seen > 0


def test_a_servers_images_are_forgotten_once_where_the_tower_is_frozen(
    server: Server, load_policy: Any, problems: list[Problem]
) -> None:
    """Another run may have used the server before, with another tower."""
    sampling = on_server(server)
    policy, other = load_policy(), load_policy(train_vision=True)
    move_tower(other)
    for user in (other, policy):
        begun(user, sampling)
        assert_is_policys(user, problems, drawn(user, problems, sampling))
    assert policy.engine is not None
    shift(policy)
    policy.engine.stale = True
    assert_is_policys(policy, problems, drawn(policy, problems, sampling))
    assert server.paths.count("/reset_encoder_cache") == 2


def test_server_of_another_precision_is_refused_unless_it_is_asked_for(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, load_policy: Any
) -> None:
    pytest.importorskip("requests")
    server = Server(str(tiny_folder), "bfloat16")
    vllm_standin.install(monkeypatch, server)
    with server.running():
        sampling = on_server(server)
        with pytest.raises(ConfigError, match=r"in bfloat16 and not in float32.*`--dtype float32`"):
            begun(load_policy(), sampling)
        assert sampling.vllm is not None
        meant = sampling.vllm.model_copy(update={"dtype": "bfloat16"})
        begun(load_policy(), sampling.model_copy(update={"vllm": meant})).engine.close()


@pytest.mark.parametrize(("version", "fits"), [("0.21.2", False), ("0.22.0", True), ("0.31.1rc1", True),
                                               ("0.32.0", False), ("1.31.0", False)])  # fmt: skip
def test_versions_that_trl_does_not_speak_to_are_refused(
    server: Server, load_policy: Any, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    """Here and on a server, before anything is sampled."""
    server.version = version
    if fits:
        begun(load_policy(), on_server(server)).engine.close()
    else:
        with pytest.raises(ConfigError, match=f"server's vLLM is {version}, .* works with 0.22 to 0.31"):
            begun(load_policy(), on_server(server))
    monkeypatch.setattr("vllm.__version__", version)
    with nullcontext() if fits else pytest.raises(ConfigError, match=f"that is installed is {version}"):
        require_vllm()
    monkeypatch.setattr(vllm, "version", lambda name: "1.17.0")
    require_vllm()


@pytest.mark.usefixtures("standin")
def test_sleeping_engine_has_the_weights_again(load_policy: Any, problems: list[Problem]) -> None:
    sampling = SAMPLING.model_copy(update={"vllm": VLLMConfig(enable_sleep_mode=True)})
    policy = begun(load_policy(), sampling)
    for _ in range(2):  # the second time nothing was learnt, but level 2 has dropped the weights
        assert_is_policys(policy, problems[:1], drawn(policy, problems[:1], sampling))


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize("tower", [False, True])
def test_adapter_is_merged_on_the_way(load_policy: Any, problems: list[Problem], tower: bool) -> None:
    policy = begun(load_policy(lora=AdapterConfig(rank=4), train_vision=tower))
    shift(policy)
    frozen = {name: p.clone() for name, p in policy.model.named_parameters()}
    assert_is_policys(policy, problems, drawn(policy, problems))
    merged = dict(policy.merged().model.named_parameters())
    held = dict(LLM.made[0].core.model.named_parameters())
    assert held.keys() == merged.keys()
    for name, tensor in merged.items():
        assert_close(held[name], tensor)
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, frozen[name])


def test_each_call_has_its_own_sampling(policy: Policy, problems: list[Problem]) -> None:
    shorter = SAMPLING.model_copy(update={"max_new_tokens": 2, "group_size": 1, "temperature": 1.0})
    groups = drawn(policy, problems, shorter)
    assert [len(group) for group in groups] == [1, 1, 1]
    assert max(len(group[0].tokens) for group in groups) == 2


def test_logprobs_are_those_after_top_p(policy: Policy, problems: list[Problem]) -> None:
    """vLLM's exceed the learner's by the logarithm of the nucleus's mass, at most -log top_p."""
    cut = SAMPLING.model_copy(update={"top_p": 0.6, "max_new_tokens": 12})
    groups = drawn(policy, problems, cut)
    excess = log_excess(policy, problems, groups)
    assert excess.min() > -2e-4 and excess.max() <= -math.log(0.6) + 2e-4
    assert excess.max() > 0.1


def test_expanded_prompts_are_refused_not_learnt_from(policy: Policy, problems: list[Problem]) -> None:
    """What happens when image slots are expanded twice (TRL issue 6294)."""
    prompts = policy.encode(problems[:1])
    ours = prompts[0].unexpanded = prompts[0].ids.tolist()
    images = sum(token == policy.loaded.family.placeholder(policy.model) for token in ours)
    theirs = f"as {len(ours) + images - 1} tokens, {2 * images - 1} of them of images"
    with pytest.raises(ConfigError, match=f"problem one: vLLM read its prompt {theirs}"):
        policy.sample(prompts, SAMPLING, seeds=[0])


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


def test_server(server: Server, load_policy: Any, problems: list[Problem]) -> None:
    """TRL's real client talks HTTP to the stand-in server; weights take the queue that stands for NCCL."""
    sampling = on_server(server)
    policy = begun(load_policy(), sampling)
    assert_is_policys(policy, problems, drawn(policy, problems, sampling))
    assert server.paths.count("/update_weights") == 1 == server.paths.count("/reset_prefix_cache")
    assert server.paths.count("/inference/v1/generate") == 3
    shift(policy)
    policy.engine.stale = True
    groups = drawn(policy, problems, sampling)
    assert [len(group) for group in groups] == [3, 3, 3]
    assert_is_policys(policy, problems, groups)
    assert_is_policys(policy, problems[1:2], drawn(policy, problems[1:2], sampling))
    assert server.paths.count("/v1/completions") == 1
    policy.engine.close()


@pytest.mark.slow
def test_two_processes_get_their_own_answers(tmp_path: Path) -> None:
    """TRL's real gather and broadcast between two processes with different numbers of problems."""
    pytest.importorskip("requests")
    tests = Path(__file__).parents[1]
    port = free_port()
    path = os.pathsep.join([str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")])
    program = [
        sys.executable,
        str(Path(__file__).with_name("vllm_process.py")),
        str(loading.BUILTIN / "digits"),
    ]
    started = [
        subprocess.Popen(
            [*program, str(rank), str(port), str(tmp_path / f"{rank}.json")],
            env=os.environ | {"PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in started:
            process.kill()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert [len(found["theirs"]) for found in first] == [2, 2]
    assert [len(found["theirs"]) for found in second] == [1, 0]
    for found in first + second:
        for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
            assert len(theirs) == 2
            for mine, their in zip(ours, theirs, strict=True):
                assert mine[: len(their)] == pytest.approx(their, abs=1e-2)


def test_servers_images_of_another_size_are_refused(
    server: Server, load_policy: Any, problems: list[Problem]
) -> None:
    sampling = on_server(server)
    policy = begun(load_policy(), sampling)
    server.core.processor.size = {"shortest_edge": 32 * 32 * 4, "longest_edge": 512 * 512}
    with pytest.raises(SamplingError, match="tokens of image 1 of a prompt that has"):
        drawn(policy, problems[:1], sampling)


def test_server_with_raw_logprobs_is_refused(server: Server, load_policy: Any) -> None:
    server.logprobs_mode = "raw_logprobs"
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        begun(load_policy(), on_server(server))


def test_server_that_is_gone(
    server: Server, load_policy: Any, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = on_server(server)
    policy = begun(load_policy(), sampling)
    monkeypatch.setattr(server, "answer", lambda path, body: 1 / 0)
    with pytest.raises(SamplingError, match=r"vLLM \(server\) has failed: .*ZeroDivision"):
        drawn(policy, problems[:1], sampling)


def test_marks_that_a_server_cannot_place(server: Server, load_policy: Any, problems: list[Problem]) -> None:
    sampling = on_server(server)
    policy = begun(load_policy(), sampling)
    prompts = policy.encode(problems[:1])
    prompts[0].images[0].text = f"<row>{prompts[0].images[0].text}"
    with pytest.raises(ConfigError, match=r"problem one: .*use sampling.vllm.mode=colocate"):
        policy.sample(prompts, sampling, seeds=[0])


def test_vllm_is_not_installed(monkeypatch: pytest.MonkeyPatch, load_policy: Any) -> None:
    from trl.generation import vllm_generation

    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install 'selfverify\[vllm\]'"):
        require_vllm()
    policy = load_policy()
    with pytest.raises(ConfigError, match="in training and evaluations"):
        policy.sample(policy.encode([]), SAMPLING, seeds=[])


@pytest.mark.usefixtures("standin")
def test_refused_families_and_shards(load_policy: Any, problems: list[Problem]) -> None:
    policy = load_policy()
    policy.loaded.family.shares_prompts = False
    with pytest.raises(ConfigError, match="use engine=own"):
        begun(policy)
    fsdp = SimpleNamespace(distributed_type=DistributedType.FSDP, state=SimpleNamespace())
    with pytest.raises(ConfigError, match="cannot be merged out of shards"):
        VLLMEngine(load_policy(lora=AdapterConfig(rank=4)), fsdp, SAMPLING)  # type: ignore[arg-type]
    policy = begun(load_policy())
    policy.engine.accelerator = fsdp  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="enable_sleep_mode"):
        drawn(policy, problems)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "own", "vllm": {}}, "need engine: vllm"),
        ({"engine": "vllm", "temperature": 0.0, "group_size": 1}, "temperature above 0"),
        ({"engine": "vllm", "vllm": {"mode": "server"}}, "needs server_base_url"),
        ({"engine": "vllm", "vllm": {"group_port": 1234}}, "group_port means nothing with mode: colocate"),
        ({"engine": "vllm", "max_new_tokens": 64, "vllm": {"max_model_length": 64}}, "no room for a prompt"),
    ],
)
def test_contradictions(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SamplingConfig(**settings)
