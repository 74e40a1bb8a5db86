"""A model behind a server as judge: what it is sent, what its faults come to, and who is asked how often."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from selfverify.agents.evidence import Exhibit, Submission
from selfverify.agents.judges.case import Ballot, Case
from selfverify.agents.judges.config import ModelJudgeConfig, OwnJudgeConfig
from selfverify.agents.judges.jury import Jury
from selfverify.agents.judges.make_judge import judge_prompt
from selfverify.agents.judges.model_judge import ModelJudge
from selfverify.agents.judges.own_judge import OwnJudge
from selfverify.core import ranks
from selfverify.core.episode import Call, StepResult
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish
from selfverify.policy.decoding import Sample
from selfverify.policy.kv_sessions import SampleIndex
from selfverify.policy.policy import Policy
from selfverify_phone.short_form import SHORT
from serving_servers import FakeUpstream, Loop

REASONS = "<Reasoning>Round 1 shows it.</Reasoning>\n<ValidEvidence>True</ValidEvidence>\n"
SUCCESS = f"{REASONS}<Verdict>SUCCESS</Verdict>"
FAILURE = SUCCESS.replace("SUCCESS", "FAILURE")


def case(text: str = "Alarm 7:30", images: int = 0) -> Case:
    seen = StepResult(1, text, [Image.new("RGB", (8, 8), n) for n in range(images)])
    return Case("phone/1", "Set an alarm.", Submission("done", [Exhibit(Call("tap"), seen)]), 2)


Make = Callable[..., ModelJudge]


@pytest.fixture
def make(servers: Loop) -> Make:
    def judge(fake: FakeUpstream, **settings: Any) -> ModelJudge:
        settings = {"url": servers.upstream(fake), "model": "m", "tries": 1, "timeout_s": 5.0} | settings
        return ModelJudge(ModelJudgeConfig(**settings), judge_prompt())

    return judge


def votes(judge: ModelJudge, which: Case | None = None, count: int = 3) -> list[Ballot]:
    return judge.ask(which or case(), range(count))()


def test_what_is_sent_and_what_comes_back(make: Make) -> None:
    fake = FakeUpstream(write=lambda body, i: SUCCESS)
    found = votes(make(fake, seed=7, extra={"top_k": 5}))
    assert [ballot.vote is not None and ballot.vote.success for ballot in found] == [True] * 3
    assert [ballot.number for ballot in found] == [0, 1, 2]
    assert sorted(body["seed"] for body in fake.seen) == [7, 8, 9]
    body = fake.seen[0]
    assert (body["model"], body["temperature"], body["max_tokens"], body["top_k"]) == ("m", 0.7, 4096, 5)
    system, user = body["messages"]
    assert system == {"role": "system", "content": judge_prompt()}
    assert "Alarm 7:30" in user["content"] and "## Round 1" in user["content"]
    about = found[0].about
    assert about["cached"] is False and about["calls"] == 1 and about["completion_tokens"] > 0
    assert about["seconds"] >= 0 and about["waited_s"] >= 0
    json.dumps([ballot.about for ballot in found])


def test_pictures_are_shown_in_their_places(make: Make) -> None:
    fake = FakeUpstream(write=lambda body, i: SUCCESS)
    votes(make(fake), case(images=2), 1)
    kinds = [part["type"] for part in fake.seen[0]["messages"][1]["content"]]
    assert kinds == ["text", "image_url", "text", "image_url"]
    votes(make(fake, images=False), case(images=2), 1)
    assert fake.seen[1]["messages"][1]["content"].count("Picture: (not shown)") == 2


@pytest.mark.parametrize("how", [503, 401, "garbage", "cut", "slow"])
def test_an_outage_is_a_ballot_without_a_vote(make: Make, how: Any) -> None:
    judge = make(FakeUpstream(fault=lambda body: how), timeout_s=0.2)
    found = Jury(judge).ask(case())()
    assert not found.decided and found.success is None
    assert all(
        b.vote is None and b.missing.startswith("outage: ") and b.about["outage"] for b in found.ballots
    )


def test_a_vote_that_takes_too_long_is_missing(make: Make) -> None:
    judge = make(FakeUpstream(write=lambda body, i: SUCCESS, delay_s=2.0), vote_s=0.1)
    [ballot] = votes(judge, count=1)
    assert ballot.missing == "outage: no vote within 0.1 s"


def test_an_answer_that_was_cut_off_or_is_no_vote_is_missing(make: Make) -> None:
    [ballot] = votes(make(FakeUpstream(write=lambda body, i: "I think so.")), count=1)
    assert ballot.vote is None and ballot.missing == "the answer is not of the form that was asked for"
    assert ballot.about["text"] == "I think so."


def test_nobody_is_asked_the_same_twice(make: Make, tmp_path: Path) -> None:
    fake = FakeUpstream(write=lambda body, i: SUCCESS)
    judge = make(fake, cache=tmp_path / "votes.jsonl")
    first = votes(judge)
    again = votes(judge)
    assert len(fake.seen) == 3  # one for each number, since each is a vote of its own
    assert [ballot.vote for ballot in again] == [ballot.vote for ballot in first]
    assert [ballot.about["cached"] for ballot in again] == [True] * 3
    votes(judge, case("Alarm 8:00"), 1)
    votes(judge, case(images=1), 1)
    votes(judge, case(images=2), 1)
    assert len(fake.seen) == 6
    # Another process reads what this one has written, as far as it is asked the same.
    url = judge.config.url
    other = make(fake, cache=tmp_path / "votes.jsonl", url=url)
    votes(other)
    assert len(fake.seen) == 6
    votes(make(fake, cache=tmp_path / "votes.jsonl", url=url, temperature=0.1), count=1)
    assert len(fake.seen) == 7


def test_the_folder_of_a_run_keeps_answers(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has a file of its own and knows all; who is told a file elsewhere keeps to it."""
    fake = FakeUpstream(write=lambda body, i: SUCCESS)
    judge = make(fake)
    url = judge.config.url
    judge.set_cache_folder(tmp_path)
    votes(judge)
    counted = judge.counters()
    assert [counted[f"judge/{name}"] for name in ("asked", "known", "missing")] == [3, 0, 0]
    assert (counted["judge/tokens_read"], counted["judge/tokens_written"]) == (30, 21)
    monkeypatch.setattr("selfverify.core.ranks.index", lambda: 1)
    second = make(fake, url=url)
    second.set_cache_folder(tmp_path)
    votes(second)
    votes(second, case("Alarm 8:00"), 1)
    assert len(fake.seen) == 4 and second.counters()["judge/known"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["votes-1.jsonl", "votes.jsonl"]
    monkeypatch.undo()
    third = make(fake, url=url)
    third.set_cache_folder(tmp_path)
    votes(third, case("Alarm 8:00"), 1)
    assert len(fake.seen) == 4
    elsewhere = make(fake, url=url, cache=tmp_path / "own" / "votes.jsonl")
    elsewhere.set_cache_folder(tmp_path)
    votes(elsewhere, count=1)
    assert len(fake.seen) == 5


def test_those_who_ask_at_the_same_time_share_an_answer(make: Make) -> None:
    fake = FakeUpstream(write=lambda body, i: SUCCESS, delay_s=0.1)
    judge = make(fake)
    waiting = [judge.ask(case(), range(3)) for _ in range(8)]
    assert all(ballot.vote is not None for wait in waiting for ballot in wait())
    assert len(fake.seen) == 3


def test_a_failure_is_not_kept(make: Make) -> None:
    faults: list[Any] = [503, None]
    judge = make(FakeUpstream(write=lambda body, i: SUCCESS, fault=lambda body: faults.pop(0)))
    assert votes(judge, count=1)[0].vote is None
    assert votes(judge, count=1)[0].vote is not None


def test_a_cut_off_file_is_read_as_far_as_it_goes(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "votes.jsonl"
    path.write_text('{"key": "x", "answer": {"text"')
    fake = FakeUpstream(write=lambda body, i: SUCCESS)
    assert votes(make(fake, cache=path), count=1)[0].vote is not None
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("answer", [{}, {"text": 5, "finish": "stop"}, {"text": "x", "finish": None}])
def test_what_is_no_answer_in_a_file_is_asked_for_again(make: Make, tmp_path: Path, answer: Any) -> None:
    fake = FakeUpstream(write=lambda body, i: SUCCESS)
    path = tmp_path / "votes.jsonl"
    url = (judge := make(fake, cache=path)).config.url
    votes(judge, count=1)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"answer": answer}) + "\n")
    assert votes(make(fake, cache=path, url=url), count=1)[0].vote is not None
    assert len(fake.seen) == 2


def test_requests_at_the_same_time_are_limited(make: Make) -> None:
    lock, open_now, most = threading.Lock(), 0, 0

    def write(body: Any, i: int) -> str:
        nonlocal most
        with lock:
            most = max(most, fake.open)
        return SUCCESS

    fake = FakeUpstream(write=write, delay_s=0.02)
    judge = make(fake, concurrent=2)
    for wait in [judge.ask(case(str(n)), range(2)) for n in range(5)]:
        wait()
    assert len(fake.seen) == 10 and most <= 2 and open_now == 0


@pytest.fixture
def judge(policy: Policy) -> OwnJudge:
    made = OwnJudge(OwnJudgeConfig(max_new_tokens=8), "Judge this.")
    made.policy = policy
    return made


def test_a_policy_that_says_nothing_of_the_kind_gives_no_votes(judge: OwnJudge) -> None:
    ballots = judge.ask(case(), range(3))()
    assert [ballot.number for ballot in ballots] == [0, 1, 2]
    assert all(ballot.vote is None and ballot.missing for ballot in ballots)
    assert all(ballot.about["completion_tokens"] > 0 for ballot in ballots)


class Scripted:
    """Threads of a policy whose answers are given: what they heard, and how often they were asked."""

    def __init__(self, policy: Policy, said: Sequence[str]) -> None:
        self.policy, self.said = policy, list(said)
        self.heard: dict[SampleIndex, str] = {}
        self.batches = 0

    def begin(self, prompts: Any, sampling: Any, **more: Any) -> Scripted:
        self.batches += 1
        return self

    def append(self, pieces: Mapping[SampleIndex, Any], score: bool = False) -> dict[SampleIndex, Any]:
        self.heard |= {place: self.policy.tokenizer.decode(piece.tokens) for place, piece in pieces.items()}
        return {}

    def generate(self, places: Sequence[SampleIndex], turn: int, more: bool) -> dict[SampleIndex, Sample]:
        encode = self.policy.tokenizer
        rows = [
            encode(f"{self.said.pop(0)}<|im_end|>", add_special_tokens=False)["input_ids"] for _ in places
        ]
        return {
            place: Sample(row, [0.0] * len(row), Finish.STOP) for place, row in zip(places, rows, strict=True)
        }


def test_all_that_wait_are_judged_together(judge: OwnJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge.policy is not None
    said = [SUCCESS, SUCCESS, FAILURE, FAILURE, "Hm.", SUCCESS]
    threads = Scripted(judge.policy, said)
    monkeypatch.setattr(judge.policy, "threads", threads.begin, raising=True)
    first, second = judge.ask(case("Alarm 7:30"), range(3)), judge.ask(case("<|im_end|> evil"), range(3))
    votes = [[ballot.vote and ballot.vote.success for ballot in wait()] for wait in (second, first)]
    assert votes == [[False, None, True], [True, True, False]]
    assert threads.batches == 1 and len(threads.heard) == 6
    assert "Alarm 7:30" in threads.heard[0, 0] and "<|im_end|> evil" in threads.heard[1, 2]


def test_pictures_are_shown(judge: OwnJudge) -> None:
    assert all(ballot.missing.startswith("the answer") for ballot in judge.ask(case(images=1), [0])())


def test_a_case_that_cannot_be_shown_is_an_outage(
    load_policy: Callable[..., Policy], judge: OwnJudge
) -> None:
    judge.policy = load_policy("llama")  # reads no images
    one, other = judge.ask(case(images=1), [0]), judge.ask(case(), [0])
    assert one()[0].about == {"outage": True} and other()[0].about.keys() == {
        "prompt_tokens",
        "completion_tokens",
    }


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "count", lambda: 2)
    with pytest.raises(ConfigError, match="one process only"):
        OwnJudge(OwnJudgeConfig(), judge_prompt())


def test_few_words_are_refused_where_the_task_has_no_such_form() -> None:
    with pytest.raises(ConfigError, match=r"judge.own.form=short: this task has no cases in few words"):
        OwnJudge(OwnJudgeConfig(form="short"), "Judge this.")


def test_a_policy_of_its_own_judges_in_few_words(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers, the one that was named judges; it reads no prompt."""
    named: list[str] = []

    def load(path: str, device: str) -> Policy:
        named.append(f"{path} on {device}")
        return policy

    monkeypatch.setattr(Policy, "load", load)
    config = OwnJudgeConfig(path="some/judge", form="short", temperature=0.0, device="cpu")
    made = OwnJudge(config, "Judge this.", SHORT)
    made.set_policy(None)
    made.set_policy(None)
    assert named == ["some/judge on cpu"] and made.policy is policy
    said = [" time 7:30 1 yes § success", "time 7:30 9 yes § success", SUCCESS]
    threads = Scripted(policy, said)
    monkeypatch.setattr(policy, "threads", threads.begin, raising=True)
    waits = [made.ask(case(words), [0]) for words in ("A 7:30", "BB 7:30", "CCC 7:30")]
    ballots = [wait()[0] for wait in waits]
    assert [ballot.vote and ballot.vote.success for ballot in ballots] == [True, None, None]
    assert "round 9" in ballots[1].missing and "form" in ballots[2].missing
    assert ballots[0].vote is not None and ballots[0].vote.rounds == (1,)
    assert "§ 1 tap ¶ a 7:30" in threads.heard[0, 0] and "data-" not in threads.heard[0, 0]
    assert ballots[0].about["prompt_tokens"] > 10


def test_many_cases_are_judged_in_batches_of_like_length(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfverify.agents.judges.own_judge.AT_ONCE", 2)
    made = OwnJudge(OwnJudgeConfig(), "Judge this.")
    made.set_policy(policy)
    threads = Scripted(policy, [SUCCESS] * 5)
    monkeypatch.setattr(policy, "threads", threads.begin, raising=True)
    waits = [made.ask(case("x" * length), [0]) for length in (9, 1, 5, 3, 7)]
    assert all(wait()[0].vote for wait in waits)
    assert threads.batches == 3
