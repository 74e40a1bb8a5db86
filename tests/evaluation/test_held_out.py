"""Where an evaluation ends, what it leaves out, who reads its answers, and benchmarks of known figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.data.test_published import TABLES
from tests.data.test_published import write as published

from data_files import base64_png, png, write_jsonl, write_reasonseg
from sampled_threads import drawn, sampled_threads
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.data.rows import open_rows
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.extraction import Extractor, make_extractor, read_again, stands_in
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample as Drawn
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.base import UNREADABLE
from selfverify.tasks.math import Math
from tables import read_tables

ALL = EvaluationConfig(problems=None, samples=2, batch_problems=2)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"r{i}", "question": f"q{i}", "answer": str(i), "image": base64_png(28, 28)}
        for i in range(count)
    ]


def broken_file(folder: Path) -> Path:
    """Five rows: the second has no answer, the fourth an image that is cut off."""
    (folder / "cut.png").write_bytes(png(28, 28)[:60])
    made = rows(5)
    del made[1]["answer"]
    made[3]["image"] = "cut.png"
    return write_jsonl(folder / "a.jsonl", made)


@pytest.mark.parametrize(("wanted", "evaluated"), [(2, 2), (3, 3), (99, 3), (None, 3)])
def test_the_file_is_the_end(policy: Policy, tmp_path: Path, wanted: int | None, evaluated: int) -> None:
    task = make_task("math", test=str(write_jsonl(tmp_path / "a.jsonl", rows(3))))
    config = ALL.model_copy(update={"problems": wanted})
    seen: list[tuple[int, int]] = []
    found = evaluate(policy, task, config, max_new_tokens=3, progress=lambda *p: seen.append(p))
    with pytest.raises(ConfigError, match="digits-pick makes problems without end"):
        evaluate(policy, make_task("digits-pick"), ALL)
    assert found["problems"] == evaluated and seen[-1] == (evaluated, evaluated) and "left_out" not in found


def test_broken_problems_stop_an_evaluation_or_are_counted(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # a broken image is tried again
    file = broken_file(tmp_path)
    task = make_task("math", test=str(file))
    with pytest.raises(DataError, match=r"a\.jsonl, line 4"):
        evaluate(policy, task, ALL, max_new_tokens=3)
    store = tmp_path / "samples.jsonl"
    skip = ALL.model_copy(update={"on_bad": "skip"})
    found = evaluate(policy, task, skip, store, max_new_tokens=3)
    assert found["problems"] == 3
    left = found["left_out"]
    assert (left["rows"], left["problems"], left["not_counted"]) == (1, 1, 0)
    assert "line 2" in left["reasons"][0] and "answer is missing" in left["reasons"][0]
    assert "line 4" in left["reasons"][1]
    # Going on changes nothing, wherever it was killed.
    whole = store.read_bytes()
    for end in (len(whole) // 3, len(whole) - 5):
        store.write_bytes(whole[:end])
        assert evaluate(policy, task, skip, store, max_new_tokens=3) == found
        assert store.read_bytes() == whole
    # Rows may be refused at once.
    strict = make_task("math", test={"path": str(file), "on_bad": "refuse", "check_images": True})
    with pytest.raises(DataError, match=r"2 broken rows in .*(?s:.*)line 2.*(?s:.*)line 4"):
        evaluate(policy, strict, skip, max_new_tokens=3)
    checked = make_task("math", test={"path": str(file), "check_images": True})
    assert evaluate(policy, checked, ALL, max_new_tokens=3)["left_out"]["rows"] == 2


def test_samples_of_a_file_that_has_changed_are_refused(policy: Policy, tmp_path: Path) -> None:
    """A target that was put right makes other verdicts, which stored samples do not know of."""
    store, file = tmp_path / "samples.jsonl", tmp_path / "a.jsonl"
    task = make_task("math", test=str(write_jsonl(file, rows(2))))
    evaluate(policy, task, ALL, store, max_new_tokens=3)
    changed = [rows(2)[0], {**rows(2)[1], "answer": "7"}]
    task = make_task("math", test=str(write_jsonl(file, changed)))
    with pytest.raises(
        ConfigError, match=r"samples\.jsonl belongs to other data: problem math/test/a/r1 asks"
    ):
        evaluate(policy, task, ALL, store, max_new_tokens=3)


def test_a_problem_that_cannot_be_encoded_is_left_out(policy: Policy, tmp_path: Path) -> None:
    """Whoever is left answers as if it had never been there."""
    good = rows(3)
    bad = [good[0], {**good[1], "question": "what is <|image_pad|>?"}, good[2]]
    skip = ALL.model_copy(update={"on_bad": "skip", "batch_problems": 3})
    task = make_task("math", test=str(write_jsonl(tmp_path / "b.jsonl", bad)))
    found = evaluate(policy, task, skip, tmp_path / "b.out", max_new_tokens=3)
    assert found["problems"] == 2 and "image_pad" in found["left_out"]["reasons"][0]
    texts = [sample.text for sample in read_samples(tmp_path / "b.out")[1]]
    task = make_task("math", test=str(write_jsonl(tmp_path / "b.jsonl", good)))
    evaluate(policy, task, skip, tmp_path / "g.out", max_new_tokens=3)
    whole = [sample.text for sample in read_samples(tmp_path / "g.out")[1]]
    assert texts == whole[:2] + whole[4:]
    only = make_task("math", test=str(write_jsonl(tmp_path / "c.jsonl", bad[1:2])))
    with pytest.raises(DataError, match="nothing to evaluate: none of 1 problems can be used"):
        evaluate(policy, only, skip, max_new_tokens=3)


def test_steps_that_a_profile_does_not_count_are_left_out(policy: Policy, tmp_path: Path) -> None:
    step = {"goal": "g", "image": base64_png(54, 120)}
    acts = [
        {"action": "open", "text": "Clock"},
        {"action": "wait"},
        {"action": "click", "coordinate": [5, 5]},
    ]
    file = write_jsonl(tmp_path / "a.jsonl", [{**step, "action": action} for action in acts])
    task = make_task("mobile", test=str(file), profile="agentcpm-odyssey")
    task.set_coordinate_space(policy.coordinate_space)
    found = evaluate(policy, task, ALL, max_new_tokens=3)
    assert found["problems"] == 2 and found["left_out"]["not_counted"] == 1
    assert set(found["categories"]["action"]) == {"wait", "click"}


def test_a_store_is_not_gone_on_with_by_other_code(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, task = tmp_path / "samples.jsonl", make_task("digits-pick")
    config = EvaluationConfig(problems=1, samples=1)

    def measure() -> Any:
        return evaluate(policy, task, config, store, max_new_tokens=2)

    found = measure()
    assert read_samples(store)[0]["image_backend"] == "Qwen2VLImageProcessorPil"
    assert measure() == found
    monkeypatch.setattr(Policy, "image_backend", "Qwen2VLImageProcessor")
    with pytest.raises(ConfigError, match="image_backend was 'Qwen2VLImageProcessorPil' and is now 'Qwen2VL"):
        measure()


# --- answers that the rules cannot read ---------------------------------------------------------------------


ROWS: list[dict[str, Any]] = [
    {"question": "How many?", "answer": "12"},
    {"question": "Which?", "options": ["red", "blue"], "answer": "B"},
]
TASK = Math(rows={"test": ROWS})
PROBLEMS = [TASK.problem("test", 0, 0), TASK.problem("test", 0, 1)]


@dataclass
class Scripted:
    """Says what it is told to, and remembers what it was shown."""

    answers: list[str | None]
    name: str = "script"
    seen: list[tuple[str, str]] = field(default_factory=list)

    def extract(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[str | None]:
        self.seen += [(problem.id, text) for problem, text in zip(problems, responses, strict=True)]
        return self.answers[: len(problems)]


def groups(policy: Policy, texts: Sequence[Sequence[str]]) -> list[Group]:
    def said(problem: Problem, text: str) -> Trajectory:
        return recite(policy, problem, TASK.open(problem, 0), [drawn(policy, text, ends=False)])

    return [Group(p, [said(p, text) for text in row]) for p, row in zip(PROBLEMS, texts, strict=True)]


WELL = "<think>t</think><answer>12</answer><score>0.5</score>"


def test_rules_come_first_and_what_is_found_is_judged_by_them(policy: Policy) -> None:
    made = groups(policy, [[WELL, "So it must be 12 dots."], ["I take blue", "no idea, 7"]])
    extractor = Scripted(["12", "blue", "7"])
    read_again(TASK, made, extractor)
    # Never shown what the rules could read.
    assert [text for _, text in extractor.seen] == ["So it must be 12 dots.", "I take blue", "no idea, 7"]
    flat = [t for group in made for t in group.trajectories]
    assert [t.parsed.read_by for t in flat] == ["rules", "script", "script", "rules"]
    assert [t.parsed.answer for t in flat] == ["12", "12", "B", None]
    assert [t.rewards["correct"] for t in flat] == [1, 1, 1, 0]
    assert [t.rewards["answer_format"] for t in flat] == [1, 0, 0, 0]  # the format stays what it was
    assert flat[1].parsed.key == flat[0].parsed.key


def test_an_extractor_has_to_copy(policy: Policy) -> None:
    """One that solves the problem itself is not believed."""
    made = groups(policy, [["It is  A\nLarge number.", "I give up"], ["x", "y"]])
    read_again(TASK, made, Scripted(["a large NUMBER", "12", None, "B"]))
    assert [t.parsed.read_by for t in made[0].trajectories] == ["script", "rules"]
    assert made[0].trajectories[1].parsed is UNREADABLE
    assert all(t.parsed is UNREADABLE for t in made[1].trajectories)


def test_a_copy_is_no_part_of_a_word_or_number() -> None:
    tables = read_tables(Path(__file__).with_suffix(".yaml"))
    assert [pair for pair in tables["copied"] if not stands_in(*pair)] == []
    assert [pair for pair in [*tables["apart"], ("a" * 10, "a" * 100_000)] if stands_in(*pair)] == []


@pytest.mark.parametrize(("first", "right"), [("it is 3", 0), ("it is 12", 1)])
def test_both_of_two_turns_are_read(first: str, right: int) -> None:
    """Two equal ones are no correction, also where the rules can read neither of them."""
    segments = [
        Segment("turn_1", [1], text=first, parsed=UNREADABLE),
        Segment("observation", [1], text="Check it.", author="environment", turn=1),
        Segment("turn_2", [1], text="it is 12", turn=1, finish=Finish.STOP, parsed=UNREADABLE),
    ]
    rewards = {"correct": 0.0, "answer": 0.0, "correct_1": 0.0}
    trajectory = Trajectory(segments, rewards=rewards, parsed=UNREADABLE)
    extractor = Scripted([first.split()[-1], "12"])
    read_again(TASK, [Group(PROBLEMS[0], [trajectory])], extractor)
    assert {text for _, text in extractor.seen} == {first, "it is 12"}
    assert (trajectory.rewards["correct_1"], trajectory.rewards["correct"]) == (right, 1)
    # A first turn that was cut off is no second answer.
    cut = Segment("turn_1", [1], text="it is 12", finish=Finish.LENGTH, parsed=UNREADABLE)
    trajectory = Trajectory([cut], rewards=dict.fromkeys(rewards, 0.0), parsed=UNREADABLE)
    read_again(TASK, [Group(PROBLEMS[0], [trajectory])], Scripted(["12"]))
    assert (trajectory.rewards["correct_1"], trajectory.rewards["correct"]) == (1, 0)


def test_a_policy_is_asked_in_text_without_the_target(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def sample(prompts: Any, sampling: Any, seeds: Any = None) -> list[list[Drawn]]:
        assert (sampling.temperature, sampling.group_size) == (0, 1)
        asked.extend(policy.tokenizer.decode(prompt.ids) for prompt in prompts)
        said = ["<answer> blue</answer>", "<answer>none</answer>", "what?"]
        return [[drawn(policy, text)] for text in said]

    monkeypatch.setattr(policy, "sample", sample, raising=False)
    extractor = Extractor(policy, "tiny")
    texts = ["I think blue", "?", "what", "a picture: <|image_pad|>"]
    assert extractor.extract([PROBLEMS[1]] * 4, texts) == ["blue", None, None, None]
    assert len(asked) == 3 and "I think blue" in asked[0] and "B. blue" in asked[0]
    assert extractor.extract([], []) == []


def test_evaluations_store_who_read_what(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(prompts: Any, sampling: Any, seeds: Any = None) -> list[list[Drawn]]:
        rows = [[WELL, "12 it is"], ["blue", "?"]]
        return [[drawn(policy, text, ends=False) for text in row] for row in rows]

    monkeypatch.setattr(policy, "threads", sampled_threads(policy, sample))
    config, store = EvaluationConfig(problems=None, samples=2), tmp_path / "s.jsonl"
    found = evaluate(policy, TASK, config, store, extractor=Scripted(["12", "blue", "no"]))
    assert [s.read_by for s in read_samples(store)[1]] == ["rules", "script", "script", None]
    assert found["pass@1"] == 0.75 and found["format_rate"] == 0.25
    # Other readers are other settings.
    with pytest.raises(ConfigError, match="extractor was 'script' and is now None"):
        evaluate(policy, TASK, config, store)
    assert make_extractor("self", policy.config, policy).name == "self"
    monkeypatch.undo()
    itself = config.model_copy(update={"extractor": "self"})
    assert evaluate(policy, TASK, itself, max_new_tokens=4)["samples"] == 4


# --- benchmarks ---------------------------------------------------------------------------------------------


CATEGORIES: dict[str, dict[str, list[str]]] = read_tables(Path(__file__).with_suffix(".yaml"))["categories"]


@pytest.mark.parametrize("name", CATEGORIES)
def test_categories_of_published_rows(name: str, tmp_path: Path) -> None:
    case = (TABLES["questions"] | TABLES["boxes"])[name]
    assert open_rows(published(tmp_path, **case))[0]["categories"] == CATEGORIES[name]


def test_known_boxes(tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """ReasonSeg, asked by a word and by a sentence: the left half of the upper half, and twice that, whose
    IoU of 0.5 is not above 0.5.

    The first problem's right response comes first and is trusted, the second's comes second and is not.
    """
    shapes = [{"label": "target", "points": [[0, 0], [50, 0], [50, 40], [0, 40]]}]
    for number, (text, whole) in enumerate((("seat", False), ("What does one sit on?", True))):
        folder = write_reasonseg(tmp_path, str(number), text=[text], is_sentence=whole, shapes=shapes)
    right, wrong = (
        f'<think>t</think><answer>{{"bbox_2d": [0, 0, {x}, 500]}}</answer><score>' for x in (500, 1000)
    )
    written = [[f"{right}0.9</score>", f"{wrong}0.2</score>"], [f"{wrong}0.8</score>", f"{right}0.1</score>"]]

    def sample(prompts: Any, sampling: Any, seeds: Any = None) -> list[list[Drawn]]:
        return [[drawn(policy, text) for text in row] for row in written]

    monkeypatch.setattr(policy, "threads", sampled_threads(policy, sample))
    monkeypatch.setattr(policy, "coordinate_space", lambda size: (1000, 1000), raising=False)
    task = make_task("grounding", test=str(folder))
    task.set_coordinate_space(policy.coordinate_space)
    found = evaluate(policy, task, EvaluationConfig(problems=2, samples=2), tmp_path / "samples.jsonl")
    samples = read_samples(tmp_path / "samples.jsonl")[1]
    assert [sample.correct for sample in samples] == [True, False, False, True]
    assert (found["pass@1"], found["oracle@2"], found["format_rate"]) == (0.5, 1.0, 1.0)
    assert found["curves"]["best_sampled"] == [0.5, 0.5] and found["sampled"]["auc"] == 0.5
    assert found["curves"]["majority"] == pytest.approx([0.5, 0.5])
    assert {column: set(values) for column, values in found["categories"].items()} == {
        "category": {"short", "long"}
    }
    for figures in found["categories"]["category"].values():
        curves = figures["accuracy"]["curves"]
        assert curves["pass@1"] == curves["majority"] == [0.5, 0.5] and curves["oracle"] == [0.5, 1.0]
    # IoU 1 and 2000 / 4000, of both problems.
    assert found["metrics"]["box_giou"]["curves"]["pass@1"][0] == pytest.approx(0.75)
