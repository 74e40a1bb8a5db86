"""Data for fine-tuning: collected of teachers, answered anew, exported from stores, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tests.agents.word_policy import word_policy
from tests.serving.test_agent_run import agent_server
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.config import EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.data.rows import open_rows
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.command_config import TeacherConfig
from selfverify.experiments.export import export_conversations
from selfverify.experiments.recipe import Recipe, load_recipe, recipe_task
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.teaching import TaughtConversation, collect, reanswer, whole
from selfverify.policy.policy import Policy
from serving_servers import FakeUpstream, Loop

EXPERT = TeacherConfig(expert=True)
SHORT = ["task.apps=[clock]", "task.prompt=task"]


def recipe(*more: str) -> Recipe:
    return load_recipe("smartsnap-phone-qwen3", [*SHORT, *more])


def policy_for(folder: Path, task: Any, problems: int = 8) -> Policy:
    made = [task.problem("train", 0, number) for number in range(problems)]
    shown = [task.demonstrate_turns(problem, np.random.default_rng(0)) for problem in made]
    return word_policy(folder, [turn.text for turns in shown for turn in turns])()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_experts_conversations_are_learnt_as_if_demonstrated(tmp_path: Path, suffix: str) -> None:
    """The same tokens in the same channels, whether the task demonstrates them or a file does."""
    found = recipe()
    done = collect(found, EXPERT, tmp_path / f"expert{suffix}", problems=6)
    assert (done.conversations, done.written, done.lost, done.correct) == (6, 6, 0, 6)
    phone = recipe_task(found)
    read = make_task("conversations", train=str(tmp_path / f"expert{suffix}"), learn="conversations")
    policy = policy_for(tmp_path / "model", phone)
    method, sampling = make_method("conversations-sft"), SamplingConfig()
    for index in range(6):
        shown = method.rollout(policy, phone, [phone.problem("train", 0, index)], [index], sampling)
        imitated = method.rollout(policy, read, [read.numbered("train", 0, index)], [index], sampling)  # type: ignore[attr-defined]
        # The first screen belongs to the prompt of what was read, and to the conversation of the phone's.
        one, other = shown.groups[0].trajectories[0], imitated.groups[0].trajectories[0]
        before = [len(rollout.prompts[0].ids) for rollout in (shown, imitated)]
        assert [*shown.prompts[0].ids, *one.tokens] == [*imitated.prompts[0].ids, *other.tokens]
        taught = [[False] * n + t.channel_mask(["action"]) for n, t in zip(before, (one, other), strict=True)]
        assert taught[0] == taught[1] and any(taught[0])
    rows = open_rows(tmp_path / f"expert{suffix}")
    assert [tool["function"]["name"] for tool in rows[0]["tools"]][-1] == "submit"
    assert rows[0]["category"] == "clock"


def clock_teacher() -> FakeUpstream:
    """Opens the clock, and hands that in."""
    opening, handing_in = ("launch", '{"app": "clock"}'), ("submit", '{"message": "Done.", "evidences": [1]}')
    return agent_server([opening], [handing_in])


def failing(server: FakeUpstream, fault: Callable[[dict[str, Any]], int | None]) -> FakeUpstream:
    """The server, which answers some requests with a status."""
    says = server.says

    def say(body: dict[str, Any]) -> Any:
        error, status = {"error": {"message": "no"}}, fault(body)
        return says(body) if status is None else web.json_response(error, status=status)

    server.says = say
    return server


def test_a_server_teaches(tmp_path: Path, servers: Loop) -> None:
    server = clock_teacher()
    teacher = TeacherConfig(server=servers.upstream(server), model="m", temperature=0.5)
    output = tmp_path / "taught.jsonl"
    done = collect(recipe(), teacher, output, problems=3, samples=2, keep="all")
    assert (done.conversations, done.written, done.lost) == (6, 6, 0)
    messages = open_rows(output)[0]["messages"]
    assert [m["role"] for m in messages] == ["user", "user", "assistant", "tool", "assistant"]
    launched = '{"name": "launch", "arguments": {"app": "clock"}}'
    assert messages[2]["content"] == f"<tool_call>\n{launched}\n</tool_call>"
    assert messages[3]["content"].startswith("## Round 1\n")
    assert len({body["seed"] for body in server.seen}) == 12 and server.seen[0]["temperature"] == 0.5
    assert "submit" in [tool["function"]["name"] for tool in server.seen[0]["tools"]]


def test_what_a_teacher_loses_is_counted_and_failures_are_left_out(tmp_path: Path, servers: Loop) -> None:
    server = failing(clock_teacher(), lambda body: 400 if len(body["messages"]) > 2 else None)
    teacher = TeacherConfig(server=servers.upstream(server), model="m")
    held = "held: 2 conversations, 0 of them right; the first of 2"
    with pytest.raises(DataError, match=f"no conversations to write; {held}"):
        collect(recipe(), teacher, tmp_path / "a.jsonl", problems=2)
    assert len((tmp_path / "a.jsonl.journal").read_text().splitlines()) == 3
    teacher = TeacherConfig(server=servers.upstream(clock_teacher()), model="m")
    with pytest.raises(DataError, match=r"held: 2 conversations, 0 of them right\. "):
        collect(recipe("task.apps=[settings]"), teacher, tmp_path / "b.jsonl", problems=2)


def test_a_teacher_that_fails_ends_the_call_and_the_next_one_goes_on(tmp_path: Path, servers: Loop) -> None:
    """What was said before is kept; nothing is counted as lost for a server that was away."""
    output, away = tmp_path / "a.jsonl", [500]
    server = failing(clock_teacher(), lambda body: away[0] if len(server.seen) > 3 and away else None)
    teacher = TeacherConfig(server=servers.upstream(server), model="m")
    found = recipe("episode.concurrent=1")
    with pytest.raises(ServerError, match=r"the server failed on \S+: .*; what is finished is stored"):
        collect(found, teacher, output, problems=3, keep="all")
    kept = (tmp_path / "a.jsonl.journal").read_text().splitlines()
    asked = len(server.seen)
    away.clear()
    assert collect(found, teacher, output, problems=3, keep="all").written == 3
    assert 1 < len(kept) < 4 and len(server.seen) == asked + 2 * (4 - len(kept))


def test_who_reaches_the_goal_and_hands_in_nothing_is_no_example(tmp_path: Path, servers: Loop) -> None:
    """The first problem's expert, but for its last call."""
    found = recipe("task.calls=json", "task.react=false")
    phone = recipe_task(found)
    shown = phone.demonstrate_turns(phone.problem("train", found.seed, 0), np.random.default_rng(0))
    server = agent_server(*(turn.text for turn in shown[:-1]), "It is done.")
    teacher = TeacherConfig(server=servers.upstream(server), model="m")
    with pytest.raises(DataError, match=r"held: 1 conversations, 0 of them right\. "):
        collect(found, teacher, tmp_path / "a.jsonl", problems=1)
    assert collect(found, teacher, tmp_path / "a.jsonl", problems=1, keep="all").written == 1
    [line] = (tmp_path / "a.jsonl").read_text().splitlines()
    assert json.loads(line)["reward"] == -1.0


def test_collections_and_teachers_that_cannot_be(tmp_path: Path) -> None:
    for name, output, message in (
        ("smartsnap-phone-qwen3", "x.csv", "written as .parquet or .jsonl"),
        ("adpo-digits", "x.jsonl", "over after the first answer"),
    ):
        with pytest.raises(ConfigError, match=message):
            collect(load_recipe(name), EXPERT, tmp_path / output, problems=1)
    served: dict[str, Any] = {"server": "http://x", "model": "m"}
    for given, message in (
        ({}, "say who teaches"),
        (served | {"expert": True}, "say who teaches"),
        ({"server": "http://x"}, "`server` and `model` go together"),
    ):
        with pytest.raises(ValueError, match=message):
            TeacherConfig(**given)


def test_turns_are_answered_anew(tmp_path: Path, servers: Loop) -> None:
    """Each behind the old conversation, as a row of which only the new answer is learnt."""
    collect(recipe(), EXPERT, tmp_path / "old.jsonl", problems=2)
    old = open_rows(tmp_path / "old.jsonl")
    server = FakeUpstream(write=lambda body, i: f"Behind {len(body['messages'])} messages.")
    teacher = TeacherConfig(server=servers.upstream(server), model="m")
    written, lost, _ = reanswer(tmp_path / "old.jsonl", teacher, tmp_path / "new.jsonl")
    turns = [sum(m["role"] == "assistant" for m in row["messages"]) for row in old]
    assert (written, lost) == (sum(turns), 0)
    new = open_rows(tmp_path / "new.jsonl")
    third = new[2]["messages"]
    assert third[:-1] == [{**m} for m in old[0]["messages"]][: len(third) - 1]
    assert third[-1]["content"] == f"Behind {len(third) - 1} messages." and new[2]["taught"] == "last"
    body = next(body for body in server.seen if len(body["messages"]) == len(third) - 1)
    assert [m["role"] for m in body["messages"]][-2:] == ["assistant", "tool"]
    asked, answered = body["messages"][-2:]
    assert asked["tool_calls"][0]["id"] == answered["tool_call_id"] and body["tools"]
    task = make_task("conversations", train=str(tmp_path / "new.jsonl"))
    assert task.count("train") == sum(turns)
    some, _, _ = reanswer(tmp_path / "old.jsonl", teacher, tmp_path / "some.jsonl", sample=3, seed=1)
    assert some == 3


def test_turns_without_an_answer_are_left_out(tmp_path: Path, servers: Loop) -> None:
    collect(recipe(), EXPERT, tmp_path / "old.jsonl", problems=1)
    server = FakeUpstream(write=lambda body, i: "" if len(body["messages"]) > 2 else "Fine.")
    teacher = TeacherConfig(server=servers.upstream(server), model="m")
    written, lost, reason = reanswer(tmp_path / "old.jsonl", teacher, tmp_path / "new.jsonl")
    assert written == 1 and lost > 0 and reason == "its answer is empty"
    with pytest.raises(ConfigError, match="name its server and model"):
        reanswer(tmp_path / "old.jsonl", EXPERT, tmp_path / "new.jsonl")
    bad = TeacherConfig(server=servers.upstream(FakeUpstream(fault=lambda body: 400)), model="m")
    with pytest.raises(DataError, match="told to fail"):
        reanswer(tmp_path / "old.jsonl", bad, tmp_path / "none.jsonl")


def test_stores_are_exported_and_read_back(tmp_path: Path) -> None:
    """What a policy said in an evaluation, message by message, without the chat template's marks."""
    task = recipe_task(recipe())
    policy = policy_for(tmp_path / "model", task)
    task.limits = RolloutLimits(turns=2)
    config = EvaluationConfig(problems=3, samples=2, temperature=1.0)
    store = tmp_path / "samples.jsonl"
    evaluate(policy, task, config, store, max_new_tokens=16)
    done = export_conversations(store, tmp_path / "own.parquet")
    samples = read_samples(store)[1]
    turns = [[step.text for step in s.steps if step.author == "policy"] for s in samples]
    spoken = [s for s, own in zip(samples, turns, strict=True) if all(t not in ("", "<|end|>") for t in own)]
    assert done.conversations == len(spoken) > 0
    for sample, row in zip(spoken, open_rows(tmp_path / "own.parquet"), strict=True):
        index = int(sample.problem.rpartition("/")[2])
        problem = task.problem("test", 0, index)
        texts = [message["content"] for message in row["messages"]]
        assert row["id"] == f"own/{sample.problem}#{sample.sample}"
        assert texts[0] == problem.messages[0]["content"][0]["text"]
        assert row["messages"][1]["role"] == "user" and texts[1].startswith("## Round 0\n")
        said = [text for m, text in zip(row["messages"], texts, strict=True) if m["role"] == "assistant"]
        assert "".join(said) in sample.text.replace("<|end|>", "")
        assert not any("<|" in text for text in texts)
    with pytest.raises(DataError, match="because they are wrong"):
        export_conversations(store, tmp_path / "right.parquet", keep="correct")
    for form, why in ((0.0, "because they came to no proper end"), (1.0, "")):
        lines = [json.loads(line) for line in store.read_text().splitlines()]
        for sample in (sample for line in lines for sample in line.get("samples", ())):
            sample["correct"] = True
            sample["rewards"] |= {"truth": 1.0, "format": form}
        store.write_text("".join(json.dumps(line) + "\n" for line in lines))
        if why:
            with pytest.raises(DataError, match=why):
                export_conversations(store, tmp_path / "right.parquet", keep="correct")
        else:
            kept = export_conversations(store, tmp_path / "right.parquet", keep="correct")
            assert kept.conversations == done.conversations


def test_the_commands(tmp_path: Path, servers: Loop) -> None:
    run = CliRunner().invoke
    expert = str(tmp_path / "expert.jsonl")
    words = ["agent", "collect", "smartsnap-phone-qwen3", *SHORT, "--expert", "--problems", "2"]
    done = run(app, [*words, "--output", expert])
    said = done.stdout.replace("\n", " ")
    assert done.exit_code == 0 and "2 conversations, 2 of them right; 2 written" in said
    url = servers.upstream(FakeUpstream(write=lambda body, i: "Fine."))
    new = str(tmp_path / "new.jsonl")
    more = ["--server", url, "--model", "m", "--sample", "2", "--output", new, "--json"]
    done = run(app, ["agent", "reanswer", expert, *more])
    assert done.exit_code == 0 and json.loads(done.stdout) == {"written": 2, "lost": 0, "reason": ""}
    done = run(app, ["data", "check", new, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["kinds"] == {"conversation": 2}
    done = run(app, ["export", str(tmp_path), "--output", "x.parquet", "--keep", "correct"])
    assert done.exit_code == 2 and "--keep goes with --format verl" in done.stderr


@pytest.mark.parametrize(
    ("last", "finish", "kept"),
    [("Seven.", "stop", True), ("Seven is", "length", False), (" ", "stop", False)],
)
def test_a_conversation_without_an_end_is_not_taught(last: str, finish: str, kept: bool) -> None:
    """Where a turn was cut off is no place for a policy to end one."""
    asked = {"role": "user", "content": "Three and four?"}
    told = TaughtConversation([asked, {"role": "assistant", "content": last}], finish=finish)
    assert whole(told) == kept
