"""What teachers on the phone hand in, which mistakes agents make there, and what teaches to copy."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from selfverify.agents.judges.case import Vote
from selfverify.agents.judges.jury import RulesJudge
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Call
from selfverify.methods.sft import ConversationSFT, ConversationSFTConfig
from selfverify.policy.policy import Policy
from selfverify.tasks.conversations import Conversations, ConversationsConfig
from selfverify_phone.copying import conversation, known_words, write_copying
from selfverify_phone.demonstrations import Teacher, demonstrated
from selfverify_phone.environment import PhoneConfig
from selfverify_phone.mistakes import MOST_REFUSED, Finished, attempted, other_text
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.playing import perform
from selfverify_phone.system.device import Phone, Refused
from selfverify_phone.templates import TEMPLATES


def draws(teacher: Teacher, needed: list[int], rounds: list[int], count: int = 400) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [teacher.chosen(needed, rounds, rng) for _ in range(count)]


def said(
    teacher: Teacher, name: str, seed: int = 0, first_screen: Literal["asked", "given"] = "given"
) -> list[str]:
    """What the teacher says of this kind of task, with the third contents."""
    options, rng = PhoneConfig(text="terse", first_screen=first_screen), np.random.default_rng(seed)
    made = make_task(name, 3)
    return [turn.text for turn in demonstrated(made, options, "chosen", False, "json", teacher, rng)]


def test_a_good_teacher_hands_in_what_is_needed() -> None:
    assert draws(Teacher(), [2, 4], [1, 2, 3, 4], 5) == [[2, 4]] * 5


def test_a_generous_teacher_adds_rounds_up_to_a_drawn_number() -> None:
    made = draws(Teacher(least=3, most=5), [4], [1, 2, 3, 4, 5, 6])
    assert {len(rounds) for rounds in made} == {3, 4, 5}
    assert all(4 in rounds and rounds == sorted(set(rounds)) for rounds in made)
    # Each other round is added as often as any other.
    shares = [np.mean([number in rounds for rounds in made]) for number in (1, 2, 3, 5, 6)]
    assert max(shares) - min(shares) < 0.12
    # There are no more than there are.
    assert draws(Teacher(least=3, most=5), [1], [1, 2], 5) == [[1, 2]] * 5


def test_a_forgetful_teacher_leaves_a_needed_round_out() -> None:
    made = draws(Teacher(least=3, most=3, omits=0.25), [4], [1, 2, 3, 4, 5])
    assert np.mean([4 not in rounds for rounds in made]) == pytest.approx(0.25, abs=0.06)
    assert all(len(rounds) == 3 for rounds in made)
    # Evidence is never empty: something else is handed in, and where there is nothing else, the one there is.
    assert draws(Teacher(omits=1.0), [4], [3, 4], 5) == [[3]] * 5
    assert draws(Teacher(omits=1.0), [4], [4], 5) == [[4]] * 5


def test_a_hasty_teacher_stops_where_the_goal_is_reached() -> None:
    name = next(name for name, template in TEMPLATES.items() if template.hidden)
    made = make_task(name, 3)
    for stops_early, calls in ((0.0, made.length + made.proving), (1.0, made.length)):
        turns = said(Teacher(stops_early=stops_early), name, first_screen="asked")
        # One turn asks for the first screen, and one hands in.
        assert len(turns) == calls + 2
        assert json.loads(turns[-1])["arguments"]["evidences"]


def test_a_teacher_who_does_not_finish_hands_in_on_the_way() -> None:
    made = make_task("clock-add-label", 3)

    def shown(teacher: Teacher, seed: int) -> int:
        turns = said(teacher, "clock-add-label", seed)
        assert json.loads(turns[-1])["name"] == "submit"
        return len(turns) - 1

    assert {shown(Teacher(unfinished=1.0), seed) for seed in range(30)} == set(range(1, made.length))
    assert {shown(Teacher(), seed) for seed in range(5)} == {made.length + made.proving}
    query = make_task("settings-ask-network", 3)
    turns = said(Teacher(unfinished=1.0), "settings-ask-network")
    assert len(turns) == query.length + query.proving + 1


def test_a_teacher_who_forgets_does_not_tap_save() -> None:
    teacher = Teacher(forgets=0.75)
    saving = [said(teacher, "clock-add-label", seed) for seed in range(200)]
    forgot = [turns for turns in saving if not any('"save"' in turn for turn in turns)]
    assert len(forgot) / len(saving) == pytest.approx(0.75, abs=0.07)
    whole = make_task("clock-add-label", 3)
    assert {len(turns) for turns in forgot} == {whole.length}  # its last call is a submission
    # A last tap on something else is not forgotten.
    other = make_task("settings-look", 3)
    assert {len(said(teacher, "settings-look", seed)) for seed in range(20)} == {
        other.length + other.proving + 1
    }


def test_a_generous_teacher_hands_in_the_smallest_evidence_now_and_then() -> None:
    made = draws(Teacher(least=3, most=5, omits=1.0, smallest=0.25), [4], [1, 2, 3, 4, 5, 6])
    assert np.mean([rounds == [4] for rounds in made]) == pytest.approx(0.25, abs=0.06)
    assert {len(rounds) for rounds in made} == {1, 3, 4, 5}


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ValueError, match="most is 2, and least is 3"):
        Teacher(least=3, most=2)


# --- agents that make mistakes ------------------------------------------------------------------------------


TERSE = PhoneConfig(text="terse", first_screen="given")


def refusal(phone: Phone, call: Call) -> str:
    """Carry a call out; why it is refused, if it is."""
    try:
        perform(phone, call)
    except Refused as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def some() -> list[tuple[str, Finished]]:
    """One of each kind of task."""
    return [
        (name, attempted(make_task(name, 0), TERSE, np.random.default_rng([kind, 1])))
        for kind, name in enumerate(TEMPLATES)
    ]


def test_about_half_of_them_are_right_and_few_are_proven_wrongly(some: list[tuple[str, Finished]]) -> None:
    assert 0.35 < np.mean([finished.truth.complete for _, finished in some]) < 0.7
    said: Counter[tuple[bool, bool]] = Counter()
    for _, finished in some:
        [ballot] = RulesJudge().ask(finished.case("all"), [0])()
        assert isinstance(ballot.vote, Vote)
        said[finished.truth.complete, ballot.vote.success] += 1
    # Who reads everything by rules knows what is done, but for what was done and never shown.
    assert said[False, True] <= 2 and said[True, False] < 0.15 * len(some)


def test_what_they_did_can_be_done_again(some: list[tuple[str, Finished]]) -> None:
    for name, finished in some[::3]:
        template, seed = finished.name.split("/")
        assert template == name
        phone = make_task(template, int(seed)).phone()
        assert [exhibit.seen.round for exhibit in finished.history] == [*range(len(finished.history))]
        errors = [refusal(phone, exhibit.call) for exhibit in finished.history if exhibit.call is not None]
        assert errors == [exhibit.seen.error for exhibit in finished.history[1:]]
        assert sum(map(bool, errors)) <= MOST_REFUSED
        again = finished.goal.on_state(phone.facts(), finished.message)
        assert again == finished.truth


def test_evidence_is_proper(some: list[tuple[str, Finished]]) -> None:
    for _, finished in some:
        rounds = [exhibit.seen.round for exhibit in finished.chosen]
        assert rounds and rounds == sorted(set(rounds))
        assert all(exhibit in finished.history for exhibit in finished.chosen)
    sizes = Counter(len(finished.chosen) for _, finished in some)
    assert sizes[1] > 0.2 * len(some) and max(sizes) <= 5


def test_the_same_draws_make_the_same_session() -> None:
    once, again = (
        attempted(make_task("clock-add-label", 3), TERSE, np.random.default_rng(4)) for _ in range(2)
    )
    assert once == again
    others = [
        attempted(make_task("clock-add-label", 3), TERSE, np.random.default_rng(seed)) for seed in range(12)
    ]
    assert len({tuple(str(e.call) for e in other.history) for other in others}) > 4


def test_agents_that_ask_for_the_first_screen_and_touch_places() -> None:
    options = PhoneConfig(address="bounds")
    for name in ("music-like", "settings-ask-same-volume", "money-spend"):
        for seed in range(6):
            finished = attempted(make_task(name, seed), options, np.random.default_rng(seed))
            assert finished.history[1].call is not None
            assert finished.history[1].call.name == "get_current_xml"
            assert 0 not in [exhibit.seen.round for exhibit in finished.chosen]


@pytest.mark.parametrize(
    "text", ["06:10", "23:55", "45", "06 71 10 69", "Anna Wood", "yes please", "Tom", "new shoes", "7 km"]
)
def test_another_text_is_of_the_same_kind(text: str) -> None:
    rng = np.random.default_rng(0)
    drawn = {other_text(text, rng) for _ in range(40)}
    assert text not in drawn and len(drawn) > 5
    if ":" in text:
        assert all(len(t) == 5 and int(t[:2]) < 24 and int(t[3:]) < 60 for t in drawn)
    elif text[0].isdigit():
        assert all(len(t) == len(text) and t[0].isdigit() for t in drawn)


# --- copying ------------------------------------------------------------------------------------------------


def test_all_that_is_called_can_be_copied() -> None:
    words = known_words()
    assert {"22:30", "Ida", "search"} <= {*words}
    for seed in range(50):
        task, screen, *rest = conversation(words, np.random.default_rng(seed))["messages"]
        listed = dict(reversed(row.rsplit(" ", 1)) for row in screen["content"].split("\n- ")[2:])
        asked = task["content"].removeprefix("# Task\nTake ").removesuffix(".").split(", ")
        called = [json.loads(m["content"])["arguments"] for m in rest if m["role"] == "assistant"]
        things = [
            listed[of["id"].strip()] if "id" in of else of["text_input"].removeprefix(" ") for of in called
        ]
        assert list(dict.fromkeys(things)) == asked and {*asked} < {*listed.values()}


def test_the_file_depends_on_the_seed_alone_and_is_learnt(tmp_path: Path) -> None:
    first = write_copying(tmp_path / "a.jsonl", 3, seed=1)
    assert write_copying(tmp_path / "b.jsonl", 3, seed=1).read_bytes() == first.read_bytes()
    assert write_copying(tmp_path / "c.jsonl", 3, seed=2).read_bytes() != first.read_bytes()
    task = Conversations(ConversationsConfig(train=str(first), learn="conversations"))
    method = ConversationSFT(ConversationSFTConfig())
    problems = [task.problem("train", 0, index) for index in range(3)]
    policy = Policy.load("builtin:phone", device="cpu")
    rollout = method.rollout(policy, task, problems, [0, 1, 2], SamplingConfig())
    for group, line in zip(rollout.groups, first.read_text().splitlines(), strict=True):
        said = [s for s in group.trajectories[0].segments if s.author == "policy"]
        assert len(said) == sum(m["role"] == "assistant" for m in json.loads(line)["messages"])
