"""Rows in LLaVA-OneVision's columns, from collecting to a verifier: a server looks and another one judges."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.experiments.looks.looks_files import write_lines
from tests.experiments.looks.looks_recipe import trace

from commands import command
from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.trajectory import Finish
from selfverify.experiments import visual_data
from selfverify.experiments.command_config import TeacherConfig
from selfverify.experiments.recipe import Recipe, to_yaml
from selfverify.experiments.train_stopping import _note_pairs, train_stopping
from selfverify.experiments.visual_data import INDUCE, collect_looks, read_lines
from selfverify.experiments.visual_judge import (
    OnAnswer,
    asked_and_wanted,
    judge_prompt,
    read_verdict,
    settled_by_rules,
)
from selfverify.experiments.visual_sets import judge_looks, make_sets, read_pairs
from selfverify.visual.config import VisualConfig
from selfverify.visual.pairs import Pairing
from selfverify.visual.task import LookQuestions, LookQuestionsConfig
from serving_servers import Body, FakeUpstream, Loop
from tables import yaml_cases

LONG = " ".join(["People walk along the street and stop at a stall."] * 30)
KINDS: list[tuple[str, str, str, str]] = [
    ("How many dogs are there?", "4", "4", "5"),
    ("Which colour is it?\nA. red\nB. blue", "B", "B", "A"),
    ("Which animal is it?", "Dog", "dog", "cat"),
    ("What is the man doing?", "The man is riding a bicycle.", "A man rides a bike", "He is asleep"),
    ("图中是什么？", "一只坐在沙发上的猫", "沙发上有一只猫", "一辆红色的汽车"),
    ("How wide is the gap?", "12 cm", "about twelve centimetres", "12 metres"),
    ("Describe the image.", LONG, "A street scene with people at a stall", "An empty beach"),
]
"""Question, reference, an answer that is right in other words, and a wrong one."""
RULED = 3
"""The first of these kinds are settled by rules."""


def write_rows(folder: Path, count: int) -> Path:
    """A file of so many rows, among them five that make no problem."""
    Image.new("RGB", (8, 8)).save(folder / "broken.png")
    content = (folder / "broken.png").read_bytes()
    (folder / "broken.png").write_bytes(content[:30])
    odd: list[dict[str, Any]] = [
        {"conversations": said(0, answer="")},
        {"conversations": []},
        {"image": None, "conversations": said(1)},
        {"image": [], "conversations": said(2)},
        {"image": "broken.png", "conversations": said(0)},
    ]
    rows = []
    for number in range(count):
        Image.new("RGB", (64, 48), (number, 9, 99)).save(folder / f"{number}.png")
        row = {"id": f"r{number}", "image": f"{number}.png", "data_source": f"source {number % 5}"}
        if number == len(odd):
            names = [f"{other}.png" for other in (1, 2, 3)]
            row |= {"image": names, "conversations": said(3, marks="<image><image><image>")}
        else:
            row |= odd[number] if number < len(odd) else {"conversations": said(number % len(KINDS))}
        rows.append(row)
    write_lines(folder / "rows.jsonl", rows)
    return folder / "rows.jsonl"


def said(kind: int, answer: str | None = None, marks: str = "<image>") -> list[dict[str, str]]:
    question, target, *_ = KINDS[kind]
    reply = target if answer is None else answer
    return [{"from": "human", "value": f"{marks}\n{question}"}, {"from": "gpt", "value": reply}]


class Servers:
    """A teacher that looks once and answers, rightly in other words or wrongly by its seed; and a judge."""

    def __init__(self, servers: Loop) -> None:
        self.teacher = servers.upstream(FakeUpstream(write=self.look, knows_logprobs=False))
        self.fake_judge = FakeUpstream(
            write=self.judge_answer, fault=lambda body: self.fault if self.fails in str(body) else None
        )
        self.judge = servers.upstream(self.fake_judge)
        self.fault: int | None = None
        self.fails = ""
        """Only requests with this text fail."""

    def look(self, body: Body, number: int) -> str:
        asked = [json.dumps(message, ensure_ascii=False) for message in body["messages"]]
        if len(asked) == 1:
            box = {"image_index": 1, "bounding_box": [0, 0, 900, 900]}
            return json.dumps({"thought": "Closer.", "action_name": "crop", "action": box})
        question, _, right, wrong = next(kind for kind in KINDS if kind[0].split("\n")[0] in asked[0])
        lied = (body["seed"] + number) % 2 or any(json.dumps(words)[1:-1] in asked[-1] for words in INDUCE)
        return f"<think>{question}</think><answer>{wrong if lied else right}</answer>"

    def judge_answer(self, body: Body, number: int) -> str:
        answer = re.search(r"Answer: (.*)\n\nReply", body["messages"][0]["content"], re.DOTALL)
        right = answer is not None and any(answer[1] == kind[2] for kind in KINDS)
        return "<think>CORRECT or INCORRECT?</think>\n" + ("CORRECT" if right else "It is INCORRECT.")


@pytest.fixture
def both(servers: Loop) -> Servers:
    return Servers(servers)


def one_vision(tmp_path: Path, both: Servers, rows: int, **stopping: Any) -> Recipe:
    folder = tmp_path / "rows"
    folder.mkdir(exist_ok=True)
    how = {
        "problems": 1000, "samples": 2, "hurried": 0, "induced": 1, "shots": "builtin",
        "teacher": f"{both.teacher}#m", "judge": f"{both.judge}#m", "pairs": "wrong",
    }  # fmt: skip
    return Recipe.model_validate(
        {
            "name": "ov",
            "output": str(tmp_path / "run"),
            "policy": {"path": "builtin:digits", "lora": {"rank": 2}},
            "task": {
                "name": "look", "train": str(write_rows(folder, rows)), "uniform_over": "source",
                "look": {"tools": ["crop"], "coordinates": "thousandths"},
            },
            "method": {"name": "dpo"},
            "stopping": how | stopping,
            "learner": {"steps": 2, "groups_per_step": 2, "batch": {"micro_batch_groups": 1}},
        }
    )  # fmt: skip


@pytest.mark.parametrize("rows", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_from_rows_to_a_verifier(rows: int, tmp_path: Path, both: Servers) -> None:
    """One command; every row is in a set or counted with its reason; the judge decides both sides."""
    pytest.importorskip("peft")
    recipe = one_vision(tmp_path, both, rows)
    (tmp_path / "ov.yaml").write_text(to_yaml(recipe))
    words = ["visual", "data", str(tmp_path / "ov.yaml")]
    command(*words)
    assert (tmp_path / "run/verifier/model/adapter_config.json").is_file()
    looks, asked = tmp_path / "run/looks", len(both.fake_judge.seen)
    made = json.loads((looks / "data.json").read_text())
    # Rows: two broken in the file, two without an image, one whose image cannot be read; two samples of each
    # of the others, and one that was induced from each right one.
    held = rows - 5
    pairs = [*read_pairs(looks)]
    assert made["sft_dropped"].pop("the row of the data file is broken") == 2
    assert "line 1: its answer is missing" in made["named"]["the row of the data file is broken"]
    reasons = {why.partition("made: ")[2][:9]: count for why, count in made["sft_dropped"].items()}
    assert (reasons["the quest"], reasons["the image"]) == (2, 1)
    assert sum(made["sft_dropped"].values()) + made["sft"] == made["traces"] + 3
    assert made["traces"] == 2 * held + made["sft"]
    assert asked <= 2 * (len(KINDS) - RULED), "equal answers to a question are judged once"
    for pair in pairs:
        free = not any(kind[2] in pair.chosen[-1]["content"] for kind in KINDS[:RULED])
        assert (pair.chosen_by, pair.rejected_by) == (("judge",) * 2 if free else ("rules",) * 2)
        right, wrong = (next(k for k in KINDS if k[place] in side[-1]["content"]) for place, side in
                        ((2, pair.chosen), (3, pair.rejected)))  # fmt: skip
        assert right == wrong
    command(*words, "--data-only")
    assert len(both.fake_judge.seen) == asked, "nothing is asked again"


def test_a_judge_decides_both_sides(tmp_path: Path, both: Servers) -> None:
    """Without one, what rules find wrong in free words takes no part; with one, votes decide, and what could
    not be asked is asked by the next call."""
    recipe, looks = one_vision(tmp_path, both, 13), tmp_path / "looks"
    del recipe.task.options["uniform_over"]
    done = collect_looks(recipe, TeacherConfig(server=both.teacher, model="m"), looks, 13, 2)
    assert (done.traces, done.unusable, done.lost) == (16, 3, 0)
    # Three rows are settled by rules, one of each kind; of five in free words all answers seem wrong to them.
    free = "the answer is in free words, of which rules cannot say that they are wrong; judge them first"
    made = make_sets(looks, Pairing())
    assert made.sft_dropped[free] == 2 * 5 and made.decided == {"rules": made.pairs} and made.pairs == 3
    with pytest.raises(ConfigError, match="`selfverify visual judge` makes it"):
        make_sets(looks, Pairing(), judged=True)
    judge = TeacherConfig(server=both.judge, model="m")
    both.fault = 500
    with pytest.raises(ServerError):
        judge_looks(looks, judge, votes=3)
    both.fault, both.fake_judge.seen = None, []
    told = judge_looks(looks, judge, votes=3)
    assert (told.right, told.wrong, told.neither, told.unasked, told.by_rules) == (5, 5, 0, 0, 6)
    assert len(both.fake_judge.seen) == 3 * 8, "two rows are of one kind"
    assert {body["seed"] for body in both.fake_judge.seen} == {0, 1, 2}
    assert judge_looks(looks, judge, votes=3) == told and len(both.fake_judge.seen) == 24
    made = make_sets(looks, Pairing(match_lengths=False), judged=True)
    assert made.decided == {"rules": 3, "judge": 5} and made.sft == 8
    with pytest.raises(ConfigError, match="votes was 3 and is now 1"):
        judge_looks(looks, judge)
    with pytest.raises(ConfigError, match="behind a server"):
        judge_looks(looks, TeacherConfig(own=True))


def test_a_judge_that_fails_in_passing_ends_the_run(tmp_path: Path, both: Servers) -> None:
    """Else other traces would be branched by the next call than by this one, which refuses to go on so. What
    is refused for good is counted, and pairs that a verifier has begun to learn from do not change."""
    recipe = one_vision(tmp_path, both, 20, votes=2)
    both.fault, both.fails = 503, KINDS[3][2]
    with pytest.raises(ServerError, match=r"answers could not be judged; the first: .*r\d+#\d"):
        train_stopping(recipe, resume=True, data_only=True)
    assert not (tmp_path / "run/looks/induced.jsonl").exists()
    both.fault, both.fake_judge.finish = None, "abort"
    with pytest.raises(ServerError, match="broke its answer off: abort"):
        train_stopping(recipe, resume=True, data_only=True)
    both.fake_judge.finish = "stop"
    asked = len(both.fake_judge.seen)
    both.fault = 400
    looks = train_stopping(recipe, resume=True, data_only=True) / "looks"
    left_out = json.loads((looks / "data.json").read_text())["sft_dropped"]["no model has judged the answer"]
    assert left_out and all(both.fails in str(body) for body in both.fake_judge.seen[asked : asked + 2])
    before = (looks / "pairs.jsonl").read_bytes()
    train_stopping(recipe, resume=True, data_only=True)
    assert (looks / "pairs.jsonl").read_bytes() == before
    _note_pairs(looks.parent, begun=False)
    _note_pairs(looks.parent, begun=True)
    (looks / "pairs.jsonl").write_bytes(before[: before.index(b"\n") + 1])
    with pytest.raises(ConfigError, match="no longer those from which"):
        _note_pairs(looks.parent, begun=True)


@yaml_cases
def test_what_rules_settle(target: Any, options: Any, answer: str | None, settled: bool) -> None:
    assert settled_by_rules({"target": target, "options": options}, answer) is settled


def test_all_references_count(tmp_path: Path) -> None:
    """A word is not wrong by rules where a further reference is in free words; options of one meaning are
    all shown to the judge."""
    assert not settled_by_rules({"target": "bike", "alternatives": ["a red car"]}, "car")
    assert settled_by_rules({"target": "bike", "alternatives": ["bicycle"]}, "car")
    options = {"A": "two", "B": "three", "C": "Two."}
    rows = [{"question": "How many?", "answer": "A", "options": options, "images": []}]
    about = asked_and_wanted(LookQuestions(LookQuestionsConfig(), {"train": rows}).problem("train", 0, 0))
    assert "Reference: A. two or: C. Two.\n" in judge_prompt(about, trace(tmp_path, "t", "so"))
    money = {
        "question": "How much, $1?",
        "answer": "$5 or $6",
        "alternatives": ["$5 to $6 {each}"],
        "images": [],
    }
    about = asked_and_wanted(
        LookQuestions(LookQuestionsConfig(), {"train": [money | {"images": []}]}).problem("train", 0, 0)
    )
    told = judge_prompt(about, trace(tmp_path, "t", "so", answer="$5, ${x}"))
    assert "Question: How much, $1?\n\nReference: $5 or $6 or: $5 to $6 {each}\n\nAnswer: $5, ${x}\n" in told


@yaml_cases
def test_a_judges_words(said: str, right: bool | None) -> None:
    assert read_verdict(said) is right


def test_votes_decide_by_more_than_half() -> None:
    for votes, right in (([True], True), ([True, False], None), ([True, None, False, False, False], False),
                         ([None, None, True], None), ([], None)):  # fmt: skip
        assert OnAnswer(0, "t", [*votes]).right is right


def test_the_shipped_examples_fit_the_tools(tmp_path: Path) -> None:
    """On an image of a thousand pixels a side, where boxes are pixels and thousandths alike, each call is
    carried out and replied to in the words of the example."""
    Image.new("RGB", (1000, 1000)).save(tmp_path / "big.png")
    for _, line in read_lines(Path(visual_data.__file__).with_name("shots.jsonl")):
        first, *said = line["messages"]
        row = {"question": first["content"][1]["text"], "answer": "?", "images": [str(tmp_path / "big.png")]}
        look = VisualConfig(tools=["crop", "zoom_in"], coordinates="pixels")
        task = LookQuestions(LookQuestionsConfig(look=look), {"train": [row]})
        episode = task.look(task.problem("train", 0, 0))
        episode.reset()
        for turn in range(0, len(said), 2):
            reply = episode.step(PolicyTurn(said[turn]["content"], [], Finish.STOP, turn // 2))
            words = [part.get("text") for part in reply.content]
            assert reply.done or words == [part.get("text") for part in said[turn + 1]["content"]]
        assert reply.done and not any(step.error for step in episode.steps)
        assert episode.result().rewards["answer_format"] == 1
