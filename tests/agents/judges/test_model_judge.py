"""A model behind a server as judge: what it is sent, what its faults come to, and who is asked how often."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image
from tests.core.test_files import full_disk

from selfverify.agents.evidence import Exhibit, Submission
from selfverify.agents.judges.case import Ballot, Case
from selfverify.agents.judges.config import ModelJudgeConfig
from selfverify.agents.judges.jury import Jury
from selfverify.agents.judges.make_judge import judge_prompt
from selfverify.agents.judges.model_judge import ModelJudge
from selfverify.core.episode import Call, StepResult
from selfverify.core.errors import ConfigError
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
    for one in found.ballots:
        assert one.vote is None and one.missing.startswith("outage: ") and one.about["outage"]


def test_a_vote_that_takes_too_long_or_is_none_is_missing(make: Make) -> None:
    late = make(FakeUpstream(write=lambda body, i: SUCCESS, delay_s=2.0), vote_s=0.1)
    assert votes(late, count=1)[0].missing == "outage: no vote within 0.1 s"
    [ballot] = votes(make(FakeUpstream(write=lambda body, i: "I think so.")), count=1)
    assert ballot.vote is None and ballot.missing == "the answer is not of the form that was asked for"
    assert ballot.about["text"] == "I think so."


WHOLE = ("stop", "eos", "eos_token", "end_turn", "tool_calls", None, "finished")


@pytest.mark.parametrize("finish", [*WHOLE, "length", "max_tokens", "content_filter", "odd!"])
def test_finish_reasons_of_all_servers(make: Make, finish: str | None) -> None:
    """One that is not known is believed where the text is whole."""
    counts, text = finish in WHOLE, SUCCESS[:-4] if finish == "odd!" else SUCCESS
    [ballot] = votes(make(FakeUpstream(write=lambda body, i: text, finish=finish)), count=1)
    assert (ballot.vote is not None) == counts
    assert counts or ballot.missing == f"the answer ended with {finish!r}"


@pytest.mark.parametrize(("content", "finish", "counts"), [
    ("", "stop", True), ("\n", None, True), ("", "length", False), ("I think so.", "stop", False),
])  # fmt: skip
def test_an_answer_among_the_thoughts_is_read_if_there_is_no_other(
    make: Make, content: str, finish: str | None, counts: bool
) -> None:
    more = {"reasoning_content": SUCCESS}
    fake = FakeUpstream(write=lambda body, i: content, finish=finish, more=more, counts=False)
    [ballot] = votes(make(fake), count=1)
    assert (ballot.vote is not None) == counts and ballot.about["prompt_tokens"] == 0


def test_a_wait_that_the_server_asks_for_costs_no_vote(make: Make) -> None:
    """As long as the vote's own time allows it; where it does not, nobody waits."""

    class Busy(FakeUpstream):
        wait = "12"

        async def _chat(self, request: web.Request, body: Any) -> web.StreamResponse:
            if len(self.seen) % 2:
                wait = {"Retry-After": self.wait}
                return web.json_response({"error": {"message": "busy"}}, status=429, headers=wait)
            return await super()._chat(request, body)

    fake = Busy(write=lambda body, i: SUCCESS)
    [ballot] = votes(make(fake, tries=2, vote_s=0.5), count=1)
    assert ballot.vote is None and "it wants to be asked again in 12 s" in ballot.missing
    assert len(fake.seen) == 1
    fake.wait, fake.seen = "1.1", []
    assert votes(make(fake, tries=2, vote_s=60.0), count=1)[0].vote is not None


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


def test_the_folder_of_a_run_keeps_answers(make: Make, tmp_path: Path, monkeypatch: Any) -> None:
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


def test_a_full_disk_ends_no_judging_and_loses_no_answer(make: Make, tmp_path: Path, caplog: Any) -> None:
    """It is named once, however many answers wait for room; then all are written."""
    fake, path = FakeUpstream(write=lambda body, i: SUCCESS), tmp_path / "votes.jsonl"
    judge = make(fake, cache=path)
    with full_disk(0):
        assert all(ballot.vote for ballot in votes(judge))
    assert path.read_bytes() == b""
    [said] = [record.getMessage() for record in caplog.records if "kept" in record.getMessage()]
    assert said.count(str(path)) == 1 and "larger than this system allows" in said
    votes(judge, case("Alarm 8:00"), 1)
    other = make(fake, cache=path, url=judge.config.url)
    votes(other)
    assert len(path.read_text().splitlines()) == len(fake.seen) == 4


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


@pytest.mark.parametrize("finish", ["abort", "timeout", "network_error"])
def test_an_answer_that_a_server_breaks_off_is_an_outage(make: Make, finish: str) -> None:
    """Also where it looks whole; it is asked for again."""
    fake = FakeUpstream(write=lambda body, i: SUCCESS, finish=finish)
    judge = make(fake)
    [ballot] = votes(judge, count=1)
    assert ballot.missing == f"outage: the server broke its answer off: {finish}" and ballot.about["outage"]
    fake.finish = "stop"
    assert votes(judge, count=1)[0].vote is not None


@pytest.mark.parametrize("answer", [{}, {"text": 5, "finish": "stop"}, {"text": "x", "finish": None}])
def test_what_is_no_answer_in_a_file_is_asked_for_again(make: Make, tmp_path: Path, answer: Any) -> None:
    fake = FakeUpstream(write=lambda body, i: SUCCESS)
    path = tmp_path / "votes.jsonl"
    url = (judge := make(fake, cache=path)).config.url
    votes(judge, count=1)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"answer": answer}) + '\n{"key": "x", "answ')
    assert votes(make(fake, cache=path, url=url), count=1)[0].vote is not None
    assert len(fake.seen) == 2


def test_requests_at_the_same_time_are_limited(make: Make) -> None:
    fake, at_once = FakeUpstream(delay_s=0.02), list[int]()
    fake.write = lambda body, i: at_once.append(fake.open) or SUCCESS  # type: ignore[func-returns-value]
    judge = make(fake, concurrent=2)
    for wait in [judge.ask(case(str(n)), range(2)) for n in range(5)]:
        wait()
    assert len(fake.seen) == 10 and max(at_once) <= 2


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no address"):
        ModelJudge(ModelJudgeConfig(url="judge", model="m"), "")
