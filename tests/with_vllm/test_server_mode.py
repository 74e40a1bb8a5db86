"""Training with a real vLLM server, and problems that it answers.

NCCL, by which TRL sends weights, needs CUDA. Here a file takes its place: the served folder gets the weights,
and the server loads them again. All other requests are TRL's own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from killed_runs import rows
from selfverify.core.config import SamplingConfig, VLLMConfig
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.trainer_config import OptimConfig, TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.loading import BUILTIN
from selfverify.policy.policy import Policy
from with_vllm.conftest import Serving

TASK = make_task("digits-pick")
CONFIG = TrainerConfig(
    steps=2, groups_per_step=2, optim={"learning_rate": 2e-4}, loss={"drop_zero_advantage": False}
)


@pytest.fixture
def by_file(vllm_server: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[SamplingConfig]:
    """Sampling on the server, which gets weights by a file; it has those of `builtin:digits` afterwards."""
    from trl.generation.vllm_client import VLLMClient

    file = vllm_server.folder / "model.safetensors"

    def reload(client: Any) -> None:
        client.session.post(
            f"{vllm_server.url}/collective_rpc", json={"method": "reload_weights"}
        ).raise_for_status()
        client.reset_prefix_cache()
        client.session.post(f"{vllm_server.url}/reset_encoder_cache").raise_for_status()

    def update(client: Any, metadata: Any, named: Any) -> None:
        save_file({name: value.detach().clone() for name, value in named}, file, metadata={"format": "pt"})
        client.session.post(
            f"{vllm_server.url}/collective_rpc", json={"method": "reload_weights"}
        ).raise_for_status()

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, device: None)
    monkeypatch.setattr(VLLMClient, "close_communicator", lambda client: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", update)
    where = VLLMConfig(server_base_url=vllm_server.url, server_timeout_s=10)
    yield SamplingConfig(group_size=4, top_p=1.0, max_new_tokens=32, engine="vllm", vllm=where)
    shutil.copyfile(BUILTIN / "digits" / "model.safetensors", file)
    reload(VLLMClient(vllm_server.url))


@pytest.mark.parametrize(
    "changes", [{}, {"train_vision": True}, {"lora": AdapterConfig(rank=8, alpha=16)}], ids=str
)
def test_a_run_on_a_server(by_file: SamplingConfig, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Its weights are the learner's after every update. A second run begins where another one has ended."""
    policy = Policy.load("builtin:digits", device="cpu", **changes)
    # What an adapter has not learnt cannot be lost on its way.
    config = (
        CONFIG.model_copy(update={"optim": OptimConfig(learning_rate=3e-3)}) if "lora" in changes else CONFIG
    )
    learn(policy, TASK, make_method("adpo"), config, by_file, output=tmp_path)
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [1, 2]
    assert all(0 < row["mismatch/max"] < 2e-3 and row["format/answer"] > 0.5 for row in found)


def test_second_turns_on_a_server(by_file: SamplingConfig, tmp_path: Path) -> None:
    policy = Policy.load("builtin:digits", device="cpu")
    method = make_method("adapo", second_turn="Check the answer.", zero_advantage="adaptive")
    learn(policy, TASK, method, CONFIG.model_copy(update={"steps": 1}), by_file, output=tmp_path)
    [row] = rows(tmp_path)
    assert row["turns/missing"] < 1 and row["mismatch/max"] < 1e-2
