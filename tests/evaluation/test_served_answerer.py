"""Evaluating a model behind a server: the same store, figures and errors as with a model of one's own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

import serving_servers
from selfverify.cli.main import app
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.evaluation.answerers import ServerAnswerer, make_answerer
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.serving.app import Gateway, Metrics
from selfverify.serving.config import GatewayConfig
from selfverify.serving.local import Local
from selfverify.tasks.base import Task, Verdict, judge_integer, user_turn
from selfverify.tasks.tool_calls import ToolError, tool
from selfverify.tasks.tool_episode import ToolEpisode
from serving_servers import Body, FakeUpstream, Loop, tagged, told

CONFIG = EvaluationConfig(problems=5, samples=4)


def served(servers: Loop, fake: FakeUpstream, **how: Any) -> ServerAnswerer:
    how = {"timeout_s": 20.0, "tries": 1} | how
    return ServerAnswerer(PolicyConfig(path=f"{servers.upstream(fake)}#m", server=how))  # type: ignore[arg-type]


def measured(answerer: ServerAnswerer, store: Path | None = None, **more: Any) -> dict[str, Any]:
    return evaluate(answerer, make_task("digits-sum"), CONFIG.model_copy(update=more), store)


def numbered(body: Body, i: int) -> str:
    return tagged(str(i), f"0.{i}")


def test_each_problem_is_one_request_with_its_seed(servers: Loop, tmp_path: Path) -> None:
    """One answer in four is 0, 1, 2 or 3; scores, log-probabilities and lengths are the server's."""
    fake = FakeUpstream(write=numbered)
    summary = measured(served(servers, fake), tmp_path / "s.jsonl", temperature=0.7, top_p=0.9)
    asked = [body for body in fake.seen if body.get("n") == 4]
    assert len(asked) == 5 and len({body["seed"] for body in asked}) == 5
    assert {(b["temperature"], b["top_p"], b["max_tokens"]) for b in asked} == {(0.7, 0.9, 48)}
    header, rows = read_samples(tmp_path / "s.jsonl")
    assert header["weights"].endswith("/v1#m") and len(rows) == 20
    assert [row.answer for row in rows[:4]] == [0, 1, 2, 3]
    assert [row.scores["sampled"] for row in rows[:4]] == [0.0, 0.1, 0.2, 0.3]
    # 1 and 0 are as likely at a score's first token, and 0 can still become any tenth below 1.
    assert rows[1].scores["soft"] == pytest.approx(0.5 * 1 + 0.5 * 0.45, abs=0.06)
    assert rows[0].logprob == pytest.approx(-0.1) and rows[0].tokens == 7 and rows[0].finish == "stop"
    assert summary["problems"] == 5 and summary["samples_per_problem"] == 4
    asked_again = len(fake.seen)
    assert measured(served(servers, fake), None)["pass@1"] == summary["pass@1"]
    assert len(fake.seen) > asked_again


@pytest.mark.parametrize("knows_n", [True, False, None])
def test_requests_are_bounded(servers: Loop, knows_n: bool | None) -> None:
    most = 0

    def write(body: Body, i: int) -> str:
        nonlocal most
        most = max(most, fake.open)
        return numbered(body, i)

    fake = FakeUpstream(write=write, knows_n=knows_n, delay_s=0.01)
    assert measured(served(servers, fake, concurrent=3))["samples"] == 20
    assert 1 < most <= 3


def test_what_is_finished_is_kept_and_not_asked_again(servers: Loop, tmp_path: Path) -> None:
    """The third question fails; then it works, and only what is missing is asked for."""
    failing: list[str] = []
    times: Counter[str] = Counter()

    def fault(body: Body) -> int | None:
        if "n" not in body:
            return None
        name = str(body["seed"])
        times[name] += 1
        if not failing and len(times) == 3:
            failing.append(name)
        return 500 if name in failing else None

    fake = FakeUpstream(write=numbered, fault=fault)
    store, answerer = tmp_path / "s.jsonl", served(servers, fake, concurrent=1)
    with pytest.raises(ServerError, match=r"the server failed on digits-sum/test/0/\d: .*goes on"):
        measured(answerer, store)
    kept = len(read_samples(store)[1])
    assert 0 < kept < 20
    before = Counter(times)
    failing[:] = ["nobody"]
    summary = measured(answerer, store)
    again = times - before
    assert summary["samples"] == 20 and sum(again.values()) == 5 - kept // 4
    assert measured(served(servers, FakeUpstream(write=numbered)), None)["curves"] == summary["curves"]


def test_a_server_without_probabilities(servers: Loop, tmp_path: Path) -> None:
    """Soft scores are missing, with the reason; the written ones of the same samples are there."""
    answerer = served(servers, FakeUpstream(write=numbered, knows_logprobs=False))
    summary = measured(answerer, tmp_path / "s.jsonl")
    assert summary["best@4"] is None and "evaluation.score=sampled" in summary["score_missing"]
    summary = measured(answerer, tmp_path / "s.jsonl", score="sampled")
    assert summary["best@4"] is not None and "score_missing" not in summary


def test_second_turns(servers: Loop, tmp_path: Path) -> None:
    """The second request holds the first answer; equal first answers are asked about together."""

    def write(body: Body, i: int) -> str:
        return tagged("0" if len(body["messages"]) == 1 else "7", "0.5")

    fake = FakeUpstream(write=write)
    summary = measured(served(servers, fake), tmp_path / "s.jsonl", second_turn="Check it.", samples=2)
    second = [body for body in fake.seen if len(body["messages"]) == 3 and "n" in body]
    assert len(second) == 5 and second[0]["messages"][2] == {"role": "user", "content": "Check it."}
    assert summary["turns"]["acc@t1"] is not None
    row = read_samples(tmp_path / "s.jsonl")[1][0]
    assert row.answer == 7 and [step.author for step in row.steps] == ["policy", "environment", "policy"]


def test_own_gateway_answers_as_the_policy(servers: Loop, tmp_path: Path) -> None:
    """Greedy answers, all their scores and log-probabilities are the same; nothing may choose among them."""
    policy, task = Policy.load("builtin:digits", device="cpu"), make_task("digits-pick")
    gateway = Gateway(Local(policy, "digits"), GatewayConfig(), metrics=Metrics())
    url = servers.gateway(gateway)
    config = EvaluationConfig(problems=4, samples=2, temperature=0.0)

    def rows(answerer: Policy | ServerAnswerer, name: str) -> list[StoredSample]:
        evaluate(answerer, task, config, tmp_path / name)
        return read_samples(tmp_path / name)[1]

    own = rows(policy, "own.jsonl")
    theirs = rows(make_answerer(PolicyConfig(path=f"{url}#digits@plain")), "theirs.jsonl")
    assert [(s.problem, s.answer, s.correct, s.scores["sampled"]) for s in own] == [
        (s.problem, s.answer, s.correct, s.scores["sampled"]) for s in theirs
    ]
    for one, other in zip(own, theirs, strict=True):
        assert other.logprob is not None and one.logprob == pytest.approx(other.logprob, abs=0.02)
        assert one.scores["soft"] == pytest.approx(other.scores["soft"], abs=1e-4)
    drawn = config.model_copy(update={"temperature": 1.0})
    with pytest.raises(ConfigError, match="NAME@plain"):
        evaluate(make_answerer(PolicyConfig(path=f"{url}#digits")), task, drawn)


def test_what_cannot_be_measured_is_refused(servers: Loop) -> None:
    answerer = served(servers, FakeUpstream())
    with pytest.raises(ConfigError, match="score=greedy"):
        measured(answerer, score="greedy")
    with pytest.raises(ConfigError, match="extractor=self"):
        measured(answerer, extractor="self")
    with pytest.raises(ConfigError, match=r"server\.like"):
        answerer.space((4, 4))
    with pytest.raises(ConfigError, match="given as URL#MODEL"):
        make_answerer(PolicyConfig(path="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="needs its weights"):
        Policy.load("http://127.0.0.1:9#m")


def test_the_commands(servers: Loop, tmp_path: Path) -> None:
    """A served model is named by the recipe's setting, or as the model to measure."""

    def run(*words: str) -> tuple[int, str]:
        shown = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
        return shown.exit_code, shown.output

    address = f"{servers.upstream(FakeUpstream(write=numbered))}#m"
    small = ["task.name=digits-sum", "evaluation.problems=2", "evaluation.samples=4"]
    code, text = run("eval", "adpo-digits", f"policy.path={address}", *small, "--output", str(tmp_path / "a"))
    assert code == 0 and "best of 4 by soft score" in text, text
    code, text = run("eval", address, *small, "--recipe", "adpo-digits", "--output", str(tmp_path / "b"))
    assert code == 0 and len(read_samples(tmp_path / "b" / "samples.jsonl")[1]) == 8, text
    code, text = run("eval", address)
    assert code == 2 and "--recipe" in text
    kept = tmp_path / "kept.jsonl"
    code, text = run(
        "data", "filter", "adpo-digits", f"policy.path={address}", *small,
        "--problems", "3", "--samples", "4", "--output", str(kept),
    )  # fmt: skip
    assert code == 0 and "of 3 problems" in text, text
    code, text = run("train", "adpo-digits", f"policy.path={address}", f"output={tmp_path / 'run'}")
    assert code == 2 and "needs its weights" in " ".join(text.split())


# --- conversations with tools -------------------------------------------------------------------------------


class Adding(ToolEpisode):
    """Adds, or fails."""

    fails = Counter[str]()
    """How often a problem's conversations are yet to fail."""

    @tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        if self.fails[self.problem.id] > 0:
            self.fails[self.problem.id] -= 1
            raise RuntimeError("the environment has died")
        if a < 0:
            raise ToolError("no negative numbers")
        return str(a + b)


class Sums(Task):
    name, summary, tags = "sums", "sums by a tool", ("answer",)
    limits = Task.limits.model_copy(update={"turns": 4, "step_threads": 2, "step_timeout_s": 20.0})

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        words = user_turn(f"What is {index} + 2?", 0)
        return Problem(f"sums/{split}/{seed}/{index}", words, [], index + 2, tools=Adding.schemas())

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return judge_integer(problem.target, tagged, largest=99)

    def open(self, problem: Problem, seed: int) -> Adding:
        return Adding(problem, self.tags, self.verdict)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes calls out of texts, as those with a parser of tools do."""

    def parsed(name: str, message: Body) -> Body:
        words, tag, call = message["content"].partition("<tool_call>")
        if not tag:
            return told(name, message)
        read = json.loads(call.partition("</tool_call>")[0])
        function = {"name": read["name"], "arguments": json.dumps(read["arguments"])}
        calls = [{"id": "call-1", "type": "function", "function": function}]
        found = told(name, {**message, "content": words.strip() or None, "tool_calls": calls})
        return found | {"finish_reason": "tool_calls"}

    monkeypatch.setattr(serving_servers, "told", parsed)


def spoken(body: Body) -> int:
    """How often the model has spoken."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def sums(body: Body, i: int) -> str:
    """Calls, and says what it was told."""
    a = int(str(body["messages"][0]["content"]).split("What is ")[1].split(" ")[0])
    if spoken(body) == 0:
        return f'<tool_call>{{"name": "add", "arguments": {{"a": {a}, "b": 2}}}}</tool_call>'
    return f"<answer>{body['messages'][-1]['content']}</answer>"


def held(
    answerer: ServerAnswerer, task: Task, store: Path, **config: Any
) -> tuple[dict[str, Any], list[StoredSample]]:
    given = {"problems": 3, "samples": 2, "score": "sampled", "temperature": 0.0} | config
    summary = evaluate(answerer, task, EvaluationConfig(**given), store, max_new_tokens=64)
    return summary, read_samples(store)[1]


def test_a_servers_own_tool_calls(servers: Loop, native: None, tmp_path: Path) -> None:
    """Offered as tools, answered as tools; stored with who spoke, in the channels of an agent."""
    fake = FakeUpstream(write=sums)
    summary, rows = held(served(servers, fake), Sums(), tmp_path / "s.jsonl")
    assert summary["pass@1"] == 1.0 and summary["conversations"]["turns"] == 2.0
    assert all(body["tools"] == Adding.schemas() for body in fake.seen)
    second = [body["messages"] for body in fake.seen if spoken(body) == 1]
    results = [messages[-1] for messages in second]
    assert all(message["role"] == "tool" and message["tool_call_id"] == "call-1" for message in results)
    assert {message["content"] for message in results} == {"2", "3", "4"}
    assert second[0][-2]["tool_calls"][0]["function"]["name"] == "add"
    steps = rows[0].steps
    assert [(step.author, step.channel) for step in steps] == [
        ("policy", "action"), ("environment", "observation"), ("policy", "answer")
    ]  # fmt: skip
    assert steps[1].record == {"role": "tool", "said": [0, 1]} and '"name": "add"' in steps[0].text
    assert rows[0].rewards["tool_calls"] == 1 and steps[0].values["tool_calls"] == 1


@pytest.mark.parametrize("finish", ["stop", "eos", "end_turn", None, "max_tokens", "content_filter"])
def test_calls_in_texts(servers: Loop, tmp_path: Path, finish: str | None) -> None:
    """A server without a parser: the same conversation, the result as the user's words.

    What servers call a whole message is one, and a call that was cut off or withheld is none.
    """
    fake = FakeUpstream(write=sums, finish=finish)
    summary, rows = held(served(servers, fake), Sums(), tmp_path / "s.jsonl")
    if finish in ("max_tokens", "content_filter"):
        assert summary["pass@1"] == 0.0 and {row.finish for row in rows} == {"length"}
        return
    assert summary["pass@1"] == 1.0 and summary["rewards"]["tool_calls"] == 1
    asked = next(body["messages"] for body in fake.seen if spoken(body) == 1)
    assert asked[-1]["role"] == "user" and asked[-1]["content"] in ("2", "3", "4")
    assert "<tool_call>" in asked[-2]["content"]


def test_lost_conversations_are_held_again(servers: Loop, tmp_path: Path) -> None:
    """An environment that dies loses its conversation, and no other; it is held again as often as asked."""
    name = "sums/test/0/1"
    Adding.fails[name] = 3
    summary, rows = held(served(servers, FakeUpstream(write=sums)), Sums(), tmp_path / "a.jsonl", retries=1)
    of = [row for row in rows if row.problem == name]
    assert sorted((row.lost, row.retries) for row in of) == [(False, 1), (True, 1)]
    assert summary["conversations"]["lost"] == pytest.approx(1 / 6) and Adding.fails[name] == 0
    assert all(row.correct for row in rows if not row.lost)


def test_the_end_of_the_context(servers: Loop, tmp_path: Path) -> None:
    """A refusal that speaks of it ends the conversation with what was said; another one loses it."""
    words = "This model's maximum context length is 32 tokens."

    def full(body: Body) -> web.Response | None:
        fault = {"error": {"message": words}}
        return web.json_response(fault, status=400) if spoken(body) == 1 else None

    answerer = served(servers, FakeUpstream(write=sums, says=full))
    _, rows = held(answerer, Sums(), tmp_path / "a.jsonl")
    assert {(row.finish, row.lost, row.correct) for row in rows} == {("length", False, False)}
    assert [step.author for step in rows[0].steps] == ["policy"] or not rows[0].steps
    assert rows[0].rewards["tool_calls"] == 1
    words = "an image is too small"
    _, rows = held(answerer, Sums(), tmp_path / "b.jsonl")
    assert {(row.finish, row.lost) for row in rows} == {("error", True)}
