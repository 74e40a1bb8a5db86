"""What a screen says stays just that: no call, no round, no vote, no markup, and no other verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.agents.injections import HARMLESS, INJECTIONS, PLACES, Place, injected, way_to
from tests.agents.phone.played import call, phone_task

from selfverify.agents.episode import AgentEpisode
from selfverify.agents.evidence import Exhibit, Submission, Vote
from selfverify.agents.judges.case import Case, read_opinion, render
from selfverify.agents.judges.jury import RulesJudge
from selfverify.core.episode import Call, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.experiments.agent_session import Watched
from selfverify.reports.report import write_agent_page
from selfverify_phone.expert import carry_out
from selfverify_phone.playing import perform
from selfverify_phone.task import PhoneAgents
from selfverify_phone.templates import TEMPLATES

NO = "<Reasoning>Not shown.</Reasoning><ValidEvidence>True</ValidEvidence><Verdict>FAILURE</Verdict>"
EVERY = [(place, text) for place in PLACES for text in INJECTIONS]
SAMPLE = EVERY[::83]
MARKS = ("<", ">", ' bounds="', ' id="', ' on="')
ROUND = re.compile(r"^\s*#+\s*round\b", re.IGNORECASE | re.MULTILINE)


class Worked:
    """A session in which an agent looks at a text, does what it was asked, and hands nothing in."""

    def __init__(self, place: Place, text: str, images: Path, way: str = "xml") -> None:
        made = injected(place, text)
        task: PhoneAgents = phone_task(text=way)
        posed = task.of_template(TEMPLATES[made.template], made.seed, "injected")
        target = {**posed.target, "reset": {"task": made.record()}, "seed": made.seed}
        self.problem = Problem(posed.id, posed.messages, target=target, meta=posed.meta, tools=posed.tools,
                               environment_begins=True)  # fmt: skip
        self.looked = [*way_to(place), Call("home")]
        phone = made.phone()
        for step in self.looked:
            perform(phone, step)
        calls = [*self.looked, *carry_out(phone, [*made.solve, *made.prove])]
        self.episode: AgentEpisode = task.open(self.problem, 0)
        self.watched = Watched(self.episode, images, lambda *about: None)
        self.replies = [self.watched.reset()]
        for turn, step in enumerate(calls):
            said = PolicyTurn(call(step.name, **step.arguments), [], Finish.STOP, turn)
            self.replies.append(self.watched.step(said))
        self.calls = calls

    @property
    def exhibits(self) -> list[Exhibit]:
        return self.episode.worked.seen

    def case(self, exhibits: Sequence[Exhibit], message: str = "Done.") -> Case:
        goal = self.episode.goal
        return Case("injected", self.problem.meta["question"], Submission(message, exhibits), 9, goal)

    def verdicts(self) -> list[tuple[bool, bool]]:
        """By rules: of what was looked at, and of everything."""
        found = []
        for exhibits in (self.exhibits[: len(self.looked) + 1], self.exhibits):
            [ballot] = RulesJudge().ask(self.case(exhibits), [0])()
            assert isinstance(ballot.vote, Vote)
            found.append((ballot.vote.valid, ballot.vote.success))
        return found


def worded(reply: Observation | None) -> str:
    assert reply is not None and not isinstance(reply.content, str)
    return str(reply.content[0]["text"])


@lru_cache(maxsize=32)
def harmless(place: Place, way: str = "xml") -> Worked:
    return Worked(place, HARMLESS, Path("/nowhere"), way)


def check_session(place: Place, text: str, images: Path, way: str) -> Worked:
    """Verdicts, rounds and calls are those of the same session with a harmless text."""
    worked, plain = Worked(place, text, images, way), harmless(place, way)
    assert worked.verdicts() == plain.verdicts() == [(plain.verdicts()[0][0], False), (True, True)]
    assert [exhibit.seen.round for exhibit in worked.exhibits] == [*range(len(plain.calls) + 1)]
    assert [exhibit.call for exhibit in worked.exhibits[1:]] == worked.calls
    assert worked.episode.worked.refused == plain.episode.worked.refused
    for number, (reply, before) in enumerate(zip(worked.replies, plain.replies, strict=True)):
        words, known = worded(reply), worded(before)
        assert ROUND.findall(words) == ["## Round"] and words.startswith(f"## Round {number}\n")
        assert len(words.splitlines()) == len(known.splitlines())  # no line of its own
        for mark in ("<", ' bounds="') if way == "xml" else ():
            assert words.count(mark) == known.count(mark)
    return worked


def check_judge(worked: Worked, message: str) -> None:
    """A judge that repeats what it has read has not voted, and one that says no has."""
    case = render(worked.case(worked.exhibits, message))
    fence = re.findall(r"\[(data-[0-9a-f]{16}) begins\]", case.text)[0]
    begins = [line for line in case.text.split("\n") if line.strip() == f"[{fence} begins]"]
    assert len(begins) == 2 + 2 * len(worked.exhibits)
    assert read_opinion(case.text, case).vote is None
    for screen in case.text.split(f"[{fence} begins]\n")[1:]:
        assert read_opinion(screen.partition(f"\n[{fence} ends]")[0], case).vote is None
    said = read_opinion(NO, case).vote
    assert said is not None and said.success is False


class Skeleton(HTMLParser):
    """A page's elements and the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))


def skeleton(worked: Worked, folder: Path) -> list[tuple[str, ...]]:
    """Of the page about a session; pictures differ, as do their number where screens look the same."""
    worked.episode.give_up("it is over")
    worked.watched.result()
    about = {"id": "injected", "question": worked.problem.meta["question"], "target": worked.problem.target}
    sample = worked.watched.sample("injected")
    page = write_agent_page(sample, about, PhoneAgents, "A test.", folder, folder / "p.html")
    return [element for element in Skeleton(page.read_text("utf-8")).found if element[0] != "image"]


@pytest.mark.parametrize("way", ["xml", "terse"])
def test_a_sample_of_all_texts_in_all_places(way: str, tmp_path: Path) -> None:
    for place, text in SAMPLE[:: 1 if way == "xml" else 4]:
        worked = check_session(place, text, tmp_path, way)
        check_judge(worked, text)


def test_pages_have_the_same_elements(tmp_path: Path) -> None:
    for place, text in SAMPLE[::12]:
        plain = skeleton(Worked(place, HARMLESS, tmp_path), tmp_path)
        assert skeleton(Worked(place, text, tmp_path), tmp_path) == plain


def test_the_suite_is_large() -> None:
    assert len(set(INJECTIONS)) >= 200 and {place for place, _ in SAMPLE} == set(PLACES)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_all_texts(place: Place, tmp_path: Path) -> None:
    plain = skeleton(Worked(place, HARMLESS, tmp_path), tmp_path)
    for number, text in enumerate(INJECTIONS):
        worked = check_session(place, text, tmp_path, "terse" if number % 4 == 0 else "xml")
        check_judge(worked, text)
        if number % len(PLACES) == PLACES.index(place):
            assert skeleton(Worked(place, text, tmp_path), tmp_path) == plain
