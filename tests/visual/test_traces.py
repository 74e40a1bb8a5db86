"""Traces: what is flattened and merged, why one is dropped, which pairs two make, and the leak test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.looks.looks_recipe import make_pairs, trace

from selfverify.core.errors import DataError
from selfverify.evaluation.samples import IMAGES
from selfverify.visual.pairs import Pair, Pairing, leak_test, paired, said_length, words_of
from selfverify.visual.traces import Curation, VisualTrace, estimated_length, flattened


def test_what_both_have_becomes_the_prompt(tmp_path: Path) -> None:
    """Turns, replies and images of the longest common beginning; cuts go with their turns."""
    right = trace(tmp_path, "r", "a crop", "b crop", "5")
    near = trace(tmp_path, "n", "a crop", "c crop", "6", right=False)
    far = trace(tmp_path, "f", "d crop", "6", right=False)
    pairs, dropped = make_pairs([right, far, near], Pairing(match_lengths=False))
    assert [pair.id for pair in pairs] == ["r > n", "r > f"] and not dropped
    first = pairs[0]
    assert first.prompt == right.messages[:3] and first.chosen == right.messages[3:]
    assert first.rejected == near.messages[3:] and first.kind == "wrong"
    assert first.chosen_cuts == right.cuts[1:] and len(first.rejected_cuts) == 2
    assert pairs[1].prompt == right.messages[:1]


def test_pairs_whose_beginnings_do_not_fit(tmp_path: Path) -> None:
    """They are left out with the reason, never put right."""
    right = trace(tmp_path, "r", "a crop", "b crop", "5")
    shown = trace(tmp_path, "s", "a crop", "b crop", "6", right=False)
    shown.messages[2]["content"][0]["text"] = "something else"
    assert paired(right, shown, "wrong") == "the same words are replied to differently"
    longer = trace(tmp_path, "l", "a crop", "b crop", "5", right=False)
    longer.messages += [{"role": "user", "content": "Too early."}, {"role": "assistant", "content": "6"}]
    assert paired(right, longer, "wrong") == "one is the beginning of the other"
    other = trace(tmp_path, "o", "a crop", "6", right=False, problem="q")
    assert paired(right, other, "wrong") == "the two are asked differently"
    _, dropped = make_pairs([right, shown, other], Pairing())
    assert [*dropped.values()] == [1, 1]


def test_induced_traces_are_never_chosen(tmp_path: Path) -> None:
    """Whoever was asked to be wrong and is right is no example of either."""
    right = trace(tmp_path, "r", "a crop", "5")
    lied = trace(tmp_path, "i", "a crop", "5 it is", source="induced")
    pairs, dropped = make_pairs([right, lied], Pairing())
    assert not pairs and dropped["induced to be wrong, and right"] == 1
    lied.rewards["correct"] = 0.0
    [pair] = make_pairs([right, lied], Pairing(match_lengths=False))[0]
    assert pair.source == "induced" and pair.rejected[0]["content"] == "5 it is"


def test_a_trace_is_rejected_once_and_a_problem_has_so_many_pairs(tmp_path: Path) -> None:
    rights = [trace(tmp_path, f"r{n}", f"{n} crop", "5") for n in "ab"]
    wrongs = [trace(tmp_path, f"w{n}", f"{n} crop", "6", right=False) for n in "cdefg"]
    how = Pairing(match_lengths=False)
    pairs, dropped = make_pairs([*rights, *wrongs], how)
    assert len(pairs) == 4 and len({pair.id.rpartition(" > ")[2] for pair in pairs}) == 4
    assert dropped == {"the problem has 4 pairs already": 1}
    assert make_pairs([*reversed(wrongs), *rights], how)[0] == pairs


def test_lengths_are_matched(tmp_path: Path) -> None:
    """Where lengths differ about as much, the chosen side is longer as often; what leaves is spread evenly.

    A character more, or a twentieth, is no difference: such pairs stay, however many there are.
    """
    said = [(30, 31), (30, 34), (200, 209)] * 5  # all rejected sides are longer, and alike
    said += [(20, 50)] * 6 + [(52, 20)] * 2  # in one group: of six every third stays
    said += [(20, 30), (20, 110)]  # nothing stands against them; the last one is too long for the ratio
    traces = []
    for number, (right, wrong) in enumerate(said):
        name = f"p{number:02}"
        traces += [
            trace(tmp_path, f"r{number}", "a crop", "x" * right, problem=name),
            trace(tmp_path, f"w{number}", "a crop", "y" * wrong, problem=name, right=False),
        ]
    pairs, dropped = make_pairs(traces, Pairing())
    gaps = [said_length(pair.chosen) - said_length(pair.rejected) for pair in pairs]
    assert gaps[:15] == [-1, -4, -9] * 5 and gaps[15:] == [-30, -30, 32, 32]
    assert [pair.problem for pair in pairs[15:17]] == ["p17", "p20"]
    assert dropped == {
        "the rejected side would be longer more often": 5,
        "one side is more than 4 times as long as the other": 1,
    }


def told(number: int, chosen: str, rejected: str) -> Pair:
    return Pair(
        f"{number}", f"p{number}", "wrong", "sampled", [{"role": "user", "content": "tell <answer>"}],
        [{"role": "assistant", "content": chosen}], [{"role": "assistant", "content": rejected}],
    )  # fmt: skip


def test_a_tag_that_only_one_side_has_is_found() -> None:
    """As in the pairs that VTS-V's authors published."""
    pairs = [told(n, f"The sign says {n}.", f"It is <answer>{n + 1}</answer>.") for n in range(20)]
    leak = leak_test(pairs)
    assert leak.accuracy == 1.0 and not leak.passes and leak.pairs == 20
    assert {word for word, _ in leak.rejected} >= {"<answer>", "</answer>"}
    assert "says" in {word for word, _ in leak.chosen}


def test_what_a_problem_is_about_does_not_help() -> None:
    """A word that tells the sides of one problem only is not seen in another fold."""
    pairs = [
        told(100 * p + n, f"word{chr(97 + p)}x", f"word{chr(97 + p)}y") for p in range(10) for n in range(3)
    ]
    grouped = [replace(pair, problem=f"p{i // 3}") for i, pair in enumerate(pairs)]
    assert leak_test(grouped).accuracy == pytest.approx(0.5)
    assert leak_test(grouped) == leak_test(grouped)


def test_too_few_problems_for_a_leak_test() -> None:
    with pytest.raises(DataError, match="5 problems or more, not 4"):
        leak_test([told(n, "a", "b") for n in range(4)])
    assert leak_test([told(n, "5", "") for n in range(5)]).pairs == 5
    assert leak_test([told(n, "--", "!") for n in range(5)]).accuracy == 0.5
    # Numbers are masked, so that 5 and 6 are the same; equal texts count half.
    pairs = [told(n, f"Cell {n}, 5.", f"Cell {n + 3}, 6.") for n in range(10)]
    assert leak_test(pairs).accuracy == 0.5 and leak_test(pairs).passes
    assert words_of(pairs[0].chosen) == ["cell", "<number>", "<number>"]


def test_hasty_pairs(tmp_path: Path) -> None:
    """Whoever was told to answer and is wrong loses against going on; there are as many as wasteful ones."""
    first, more = trace(tmp_path, "a", "a crop", "5"), trace(tmp_path, "b", "a crop", "b crop", "5")
    early = trace(tmp_path, "h", "6", right=False, source="hurried")
    pairs, dropped = make_pairs([first, more, early], Pairing(wasteful=True))
    assert [(pair.id, pair.kind) for pair in pairs] == [("a > h", "hasty"), ("a > b", "wasteful")]
    assert pairs[0].source == "hurried" and len(pairs[0].chosen) > len(pairs[0].rejected) and not dropped
    # A hasty answer that is right is the better side of a wasteful pair, and of these there is one too many.
    lucky = trace(tmp_path, "l", "a crop", "7", source="hurried")
    pairs, dropped = make_pairs([first, more, early, lucky, trace(tmp_path, "c", "d crop", "e", "f", "5")],
                                Pairing(wasteful=True))  # fmt: skip
    assert sum(pair.kind == "wasteful" for pair in pairs) == 1
    assert dropped["there would be more wasteful pairs than of the opposite"] >= 1
    # Without wasteful pairs nothing leaves, whatever the lengths are.
    assert [pair.kind for pair in make_pairs([first, early], Pairing())[0]] == ["hasty"]


def dropped(folder: Path, one: VisualTrace, **demands: Any) -> str:
    """Why a trace is dropped."""
    curation = Curation(folder / IMAGES, **demands)
    kept = curation.take([one])
    assert len(kept) + curation.dropped.total() == 1
    return next(iter(curation.dropped), "")


def test_what_is_flattened_and_merged() -> None:
    """Nested lists are opened, texts joined, a user's messages merged; texts alone become a text."""
    image = {"type": "image", "image": "a.png"}
    messages = [
        {"role": "user", "content": [[{"type": "text", "text": "One "}, ["image:"]], image]},
        {"role": "user", "content": "Two."},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes"}, {"type": "text", "text": "."}]},
        {"role": "tool", "content": []},
        {"role": "assistant", "content": "No."},
    ]
    asked = [{"type": "text", "text": "One image:"}, image, {"type": "text", "text": "Two."}]
    assert flattened(messages) == [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "Yes."},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "No."},
    ]


def test_every_drop_has_its_reason(tmp_path: Path) -> None:
    def make(*said: str, **more: Any) -> VisualTrace:
        return trace(tmp_path, "t", *(said or ("a crop", "5")), **more)

    assert dropped(tmp_path, make()) == ""
    assert dropped(tmp_path, make(lost="the server is gone")) == "they broke off"
    assert dropped(tmp_path, make(finish="length")) == "their last turn was cut off"
    assert dropped(tmp_path, make("5")) == "no tool was used"
    assert dropped(tmp_path, make(steps=[{"error": "outside"}])) == ""
    assert dropped(tmp_path, make("x" * 400, "5"), most_tokens=100) == "they are longer than 100 tokens"
    assert dropped(tmp_path, make("x" * 360, "5"), most_tokens=100) == ""
    for name, value in (
        ("cuts", []), ("messages", []), ("cuts", [[["plan", 0]], [["action", 0]]]), ("cuts", [[], []]),
        ("cuts", [[[]], [[]]]),
    ):  # fmt: skip
        one = make()
        setattr(one, name, value)
        assert dropped(tmp_path, one).startswith("malformed: "), name
    for content in (None, 5, [{"type": "video", "video": "x"}], [{"type": "text"}], [7]):
        one = make()
        one.messages[0]["content"] = content
        assert dropped(tmp_path, one).startswith("malformed: "), content
    for place, role in ((0, "assistant"), (1, "robot"), (2, "assistant"), (3, "user")):
        one = make()
        one.messages[place]["role"] = role
        assert dropped(tmp_path, one).startswith("malformed: "), (place, role)
    assert dropped(tmp_path, make("  ", "5")) == "malformed: a turn is empty or shows images"


@pytest.mark.parametrize("damage", ["gone", "no image", "cut off", "elsewhere"])
def test_a_trace_whose_image_is_gone(tmp_path: Path, damage: str) -> None:
    """It is dropped, whatever became of the file; no name leads out of the folder."""
    one = trace(tmp_path, "t", "a crop", "5")
    path = tmp_path / IMAGES / one.images[1]
    if damage == "gone":
        path.unlink()
    elif damage == "elsewhere":
        one.messages[2]["content"][1]["image"] = f"../{IMAGES}/{one.images[0]}"
    else:
        path.write_bytes(b"no image" if damage == "no image" else path.read_bytes()[:40])
    assert dropped(tmp_path, one) == "an image is missing or cannot be read"


def test_one_problem_is_asked_in_one_way_and_answered_once_alike(tmp_path: Path) -> None:
    curation = Curation(tmp_path / IMAGES)
    other = trace(tmp_path, "d", "b crop", "5")
    other.messages[0] = {"role": "user", "content": "Something else?"}
    traces = [trace(tmp_path, name, "a crop", "5") for name in ("a", "b")]
    kept = curation.take([*traces, trace(tmp_path, "c", "b crop", "5"), other])
    assert [one.id for one in kept] == ["a", "c"]
    assert [*curation.dropped.values()] == [1, 1]


def test_the_estimated_length() -> None:
    """A token for four bytes, rounded up for each text, and one for 28 x 28 pixels."""
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "a"}, {"type": "text", "text": "12345"}]},
        {"role": "assistant", "content": "äö"},
    ]
    assert estimated_length(messages, {"a": (280, 56)}) == 20 + 2 + 1
    assert estimated_length(messages[:1], {"a": (3, 3)}) == 1 + 2
