"""SmartSnap's recipes for devices, pages and servers, run for two steps with a tiny policy."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from tests.agents.word_policy import word_policy

from environment_servers import serve
from reproduce.smartsnap import agent_tables
from selfverify.core.episode import Call
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import train
from selfverify.tasks.tool_calls import written_call
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment
from serving_servers import Loop

TINY = [
    "policy.dtype=float32", "policy.gradient_checkpointing=false", "policy.device=cpu",
    "learner.steps=2", "learner.groups_per_step=2", "sampling.group_size=2", "sampling.max_new_tokens=8",
    "episode.turns=2", "evaluation.problems=1", "task.prompt=task",
]  # fmt: skip
OWN_JUDGE = [f"{at}.judge={{kind: own, own: {{max_new_tokens: 4}}}}" for at in ("task", "evaluation_task")]


def run(name: str, folder: Path, *overrides: str) -> None:
    """Two steps of a recipe; a policy that has learnt nothing says nothing that ends."""
    texts = [written_call(Call("tap", {"x1": 1, "y1": 2, "x2": 3, "y2": 4}), "tagged")]
    word_policy(folder / "tiny", texts)
    recipe = load_recipe(name, [f"policy.path={folder / 'tiny'}", f"output={folder}/run", *TINY, *overrides])
    train(recipe)
    assert [*agent_tables([f"RL:tiny={folder}/run"]).figures] == [("RL", "tiny", "1")]
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(line["conversation/turns"] >= 1 for line in lines)
    assert "episode_failed" not in (folder / "run" / "events.jsonl").read_text()


def test_the_papers_recipe_on_phones(tmp_path: Path) -> None:
    pytest.importorskip("adbutils")
    from tests.agents.tasks.test_android_agents import DEVICES, YAML

    from agents.android.fake_adb import adb_server
    from agents.android.phones import Phone

    (tmp_path / "setting.yaml").write_text(YAML)
    phones = {serial: Phone() for serial in DEVICES}
    with adb_server(phones) as server:
        run(
            "smartsnap-qwen3-8b",
            tmp_path,
            f"task.train={tmp_path}/setting.yaml",
            f"task.test={tmp_path}/setting.yaml",
            f"task.devices=[{', '.join(DEVICES)}]",
            f"task.android={{server: '{server.address}', reset: {{how: clear}}, settle_seconds: 0}}",
            "task.lengths=null",
            *OWN_JUDGE,
        )
        assert all(phone.commands for phone in phones.values())


@pytest.mark.slow
def test_the_recipe_with_servers(tmp_path: Path, servers: Loop) -> None:
    row = {"instruction": "Turn off dark mode.", "task": {"template": "settings-display"}, "seed": 7}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    phone = partial(PhoneEnvironment, PhoneConfig(text="terse"))
    urls = [servers.run(serve(servers.stack, phone=phone))[1] for _ in range(2)]
    run(
        "smartsnap-environments",
        tmp_path,
        f"task.train={tmp_path}/tasks.jsonl",
        f"task.test={tmp_path}/tasks.jsonl",
        f"task.sources={json.dumps([{'kind': 'server', 'url': url} for url in urls])}",
        OWN_JUDGE[0],
    )
