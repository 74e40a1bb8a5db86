"""Samples and rollouts become files in ATIF, from which all of them can be read."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import TypeAdapter

from atif_rules import Document
from commands import command
from samples import sample, write_samples
from selfverify.core.errors import ConfigError, DataError, FileError
from selfverify.core.jsonl_store import read_journal, write_journal
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.evaluation.samples import StoredProblem, StoredSample, StoredStep, StoredVerdict, read_samples
from selfverify.experiments.export import Exported, Portion, export_atif
from selfverify.experiments.registry import TASKS, make_task
from selfverify.rollouts.recording import RecordedGroup, RecordedTrajectory, record
from selfverify.tasks.answering import Verdict

SETTINGS = {"task": "rooms", "weights": "w0", "model": "runs/é", "temperature": 0.7, "extractor": None}
with pytest.raises(ConfigError) as _missing:
    make_task("rooms")
UNKNOWN = {"rooms/2": str(_missing.value)}
LOOKS = '{"name": "look", "arguments": {"what": "é\\ud800", "n": 1e-3}}'
CALL = f"<think>Hm.</think><tool_call>{LOOKS}</tool_call>"


def png(colour: str, folder: Path, size: tuple[int, int] = (20, 12)) -> str:
    """A picture in a folder, named by its content."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    name = f"{hashlib.blake2b(buffer.getvalue(), digest_size=16).hexdigest()}.png"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(buffer.getvalue())
    return name


def talk(*images: str) -> list[StoredStep]:
    """A conversation of two turns with tools and one without."""
    end, two = "<|im_end|>", "\u2028<|image_pad|>two<|image_pad|>"
    return [
        StoredStep("policy", 0, "action", CALL + end, [], "stop", {"tool_calls": 1.0, "delta": 1 / 3}, None),
        StoredStep("environment", 1, "observation", two, [*images], None, {}, None),
        StoredStep("policy", 1, "action", "I call nothing.", [], "stop", {}, None),
        StoredStep("environment", 2, "observation", "A wall.", [], None, {}, None),
        StoredStep("policy", 2, "answer", "42", [], "stop", {}, StoredVerdict([4, 2.5, None], None, False)),
        StoredStep("environment", 3, "observation", "Sure?", [*images[:1]], None, {}, None),
        StoredStep("policy", 3, "answer", "", [], "length", {}, StoredVerdict("43", "43", True)),
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An evaluation: a problem with conversations, one with single answers, one that the gallery lacks."""
    folder = tmp_path / "eval"
    first, second = (png(colour, folder / "images") for colour in ("navy", "orange"))
    png("black", folder / "images")  # nobody shows it
    samples: list[StoredSample] = []
    for number, images in enumerate(((first, second), (second, second))):
        steps = talk(*images)
        text = "".join(step.text for step in steps)
        more = {"scores": {"soft": 0.25, "sampled": None, "greedy": 0.0}, "key": None}
        samples.append(sample("rooms/0", number, bool(number), 0.5, steps=steps, text=text, **more))
    samples += [
        sample("rooms/1", n, True, 0.25 * n, text="<answer>é\n\u2028</answer>", answer=[1, 2.0, "x"])
        for n in range(2)
    ]
    # One that was over before the policy spoke, and one that says nothing.
    door = StoredStep("environment", 0, "observation", "A door.", [first], "stop", {}, None)
    for number, given in enumerate(({"steps": [door], "text": door.text, "tokens": 0}, {"finish": None})):
        own: dict[str, Any] = {"logprob": None, "answer": None} | given
        samples.append(sample("rooms/2", number, False, None, **own))
    write_samples(folder / "samples.jsonl", SETTINGS, samples)
    (folder / "gallery").mkdir()
    Image.new("L", (8, 8), 77).save(folder / "gallery" / "00000.png")
    entries = [
        {
            "id": "rooms/0", "question": "Where?\ud800", "target": [1.5, None], "image": "00000.png",
            "frame": [8, 8], "regions": [],
        },
        {"id": "rooms/1", "question": "What?", "target": "é", "image": None},
    ]  # fmt: skip
    (folder / "gallery" / "problems.json").write_text(json.dumps(entries))
    return folder


def documents(folder: Path) -> dict[str, Any]:
    """The exported files by name, each checked against the rules of the format."""
    found = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*-*.json"))}
    for text in found.values():
        Document.model_validate_json(text)
    return {name: json.loads(text) for name, text in found.items()}


def test_all_of_a_sample_is_in_its_file_as_other_programs_read_it(run: Path, tmp_path: Path) -> None:
    """Its steps, its numbers and the settings of its store; and those images that are shown, to the byte."""
    out = tmp_path / "out"
    assert export_atif(run, out) == Exported(6, 3, UNKNOWN)
    settings, samples = read_samples(run / "samples.jsonl")
    made = documents(out)
    ours = [document["extra"]["selfverify"] for document in made.values()]
    for about, given in zip(ours, samples, strict=True):
        plain = json.loads(json.dumps(asdict(given)))
        steps, text = plain.pop("steps"), plain.pop("text")
        assert about["sample"] == plain and about["conversation"] == bool(steps), text
        assert about["settings"] == settings
    assert [about["index"] for about in ours] == [0, 0, 1, 1, 2, 2]
    first = made["problem-000000-sample-00.json"]
    told = [step["extra"]["selfverify"] for step in first["steps"][1:]]
    seen = [step["observation"] for step in first["steps"] if "observation" in step]
    told += [result["extra"]["selfverify"] for each in seen for result in each["results"]]
    for step in json.loads(json.dumps([asdict(step) for step in samples[0].steps])):
        assert {name: value for name, value in step.items() if name not in ("text", "images")} in told
    shown = {name for s in samples for step in s.steps for name in step.images}
    for name in shown:
        assert (out / "images" / name).read_bytes() == (run / "images" / name).read_bytes()
    assert {path.name for path in (out / "images").iterdir()} == shown | {"problem-000000.png"}
    asked = (out / "images" / "problem-000000.png").read_bytes()
    assert asked == (run / "gallery" / "00000.png").read_bytes()
    entry = ours[0]["entry"]
    shown_entry = [entry[name] for name in ("question", "target", "image")]
    assert shown_entry == ["Where??", [1.5, None], "problem-000000.png"]
    assert ours[4]["entry"] is None and json.loads((out / "export.json").read_text())["complete"] is True
    assert first["trajectory_id"] == "rooms/0#0" and first["agent"]["model_name"] == "runs/é"
    assert len({document["session_id"] for document in made.values()}) == 1
    asked, looks, idle, answers, doubts, ends = first["steps"]
    assert [step["source"] for step in first["steps"]] == ["user", "agent", "agent", "agent", "user", "agent"]
    assert asked["message"][0]["source"]["media_type"] == "image/png"
    assert asked["message"][1] == {"type": "text", "text": "Where??"}
    [call] = looks["tool_calls"]
    assert (call["function_name"], call["arguments"]) == ("look", {"what": "é?", "n": 0.001})
    [result] = looks["observation"]["results"]
    assert result["source_call_id"] == call["tool_call_id"]
    assert [part["type"] for part in result["content"]] == ["text", "image", "image"]
    for part in result["content"][1:]:
        assert (out / part["source"]["path"]).is_file()
    # What followed a turn without a call came of no call; what followed an answer was said by a user.
    assert "tool_calls" not in idle and idle["observation"]["results"][0]["content"] == "A wall."
    assert "observation" not in answers and doubts["message"][0]["text"] == "Sure?" and ends["message"] == ""
    [door] = made["problem-000002-sample-00.json"]["steps"]
    assert door["source"] == "user" and door["message"][0]["text"] == "A door."
    alone = made["problem-000002-sample-01.json"]["steps"]
    assert [step["source"] for step in alone] == ["agent"] and alone[0]["metrics"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("portion", "names"),
    [
        (Portion(problems=2), ["0-sample-00", "0-sample-01", "1-sample-00", "1-sample-01"]),
        (Portion(limit=3), ["0-sample-00", "0-sample-01", "1-sample-00"]),
        (Portion(only=("rooms/2", "rooms/1"), problems=1), ["1-sample-00", "1-sample-01"]),
    ],
)
def test_a_part_of_them(run: Path, tmp_path: Path, portion: Portion, names: list[str]) -> None:
    export_atif(run, tmp_path / "out", portion)
    assert [*documents(tmp_path / "out")] == [f"problem-00000{name}.json" for name in names]


def test_what_cannot_be_exported_is_named(run: Path, tmp_path: Path) -> None:
    out, store = tmp_path / "out", run / "samples.jsonl"
    with pytest.raises(ConfigError, match="there is no folder and no file"):
        export_atif(tmp_path / "none", out)
    with pytest.raises(ConfigError, match=r"holds no samples, neither samples\.jsonl nor samples-after"):
        export_atif(run / "images", out)
    with pytest.raises(ConfigError, match="holds no rollout log"):
        export_atif(run, out, rollouts=True)
    with pytest.raises(ConfigError, match=r"holds no problem rooms/7; it holds rooms/0, rooms/1, rooms/2"):
        export_atif(run, out, Portion(only=("rooms/7",)))
    assert not out.exists()
    with pytest.raises(ConfigError, match="eval is not empty; choose another folder"):
        export_atif(run, run)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file: this folder cannot be made"):
        export_atif(run, tmp_path / "file")
    header, first, *rest = store.read_text().split("\n")
    image = json.loads(first)["samples"][0]["steps"][1]["images"][0]
    (run / "gallery" / "00000.png").rename(run / "asked")
    with pytest.raises(DataError, match=r"problem rooms/0: the image .*00000\.png cannot be read: No such"):
        export_atif(run, tmp_path / "first")
    os.mkfifo(run / "gallery" / "00000.png")
    with pytest.raises(DataError, match=r"problem rooms/0: .*00000\.png cannot be read: this is a pipe"):
        export_atif(run, tmp_path / "pipe")
    (run / "asked").rename(run / "gallery" / "00000.png")
    (run / "images" / image).rename(run / "kept")
    with pytest.raises(DataError, match=f"rooms/0, sample 0: the image .*{image} is missing"):
        export_atif(run, out)
    export_atif(run, tmp_path / "other", Portion(only=("rooms/1",)))  # which shows no image
    Image.new("RGB", (3, 3)).save(run / "images" / image)
    with pytest.raises(DataError, match="is damaged: its content is not the one"):
        export_atif(run, tmp_path / "second")
    assert not (tmp_path / "second" / "export.json").exists()
    store.write_text("\n".join([header, first.replace(image, "../kept"), *rest]))
    with pytest.raises(DataError, match=r"sample 0: '\.\./kept' is no name of an image"):
        export_atif(run, tmp_path / "third")
    store.write_text("\n".join([header, first.replace('"turn": 0', '"turn": "0"', 1), *rest]))
    with pytest.raises(DataError, match=r"samples.jsonl, line 2: samples.0.steps.0.turn: Input should be"):
        export_atif(run, out)
    store.write_text(header + "\n")
    with pytest.raises(ConfigError, match="holds no samples yet"):
        export_atif(run, out)


def test_problems_that_the_gallery_lacks_are_made_anew(tmp_path: Path) -> None:
    """By the store's header; not where they ask something else now."""
    task = TASKS["digits-pick"]()
    problems = [task.problem("test", 0, index) for index in range(3)]
    rows = [
        StoredProblem(index, problem.digest() if index else "other", [sample(problem.id, 0, True, 0.5)])
        for index, problem in enumerate(problems)
    ]
    settings = {"task": task.name, "task_options": task.config.model_dump(mode="json"), "split": "test"}
    write_journal(tmp_path / "samples.jsonl", StoredProblem, settings, rows)
    done = export_atif(tmp_path / "samples.jsonl", tmp_path / "out")
    assert [*done.unknown] == [problems[0].id] and "the data has changed" in done.unknown[problems[0].id]
    made = documents(tmp_path / "out")
    entries = [document["extra"]["selfverify"]["entry"] for document in made.values()]
    assert [entry is None for entry in entries] == [True, False, False]
    for index, problem in enumerate(problems[1:], start=1):
        picture, words = made[f"problem-00000{index}-sample-00.json"]["steps"][0]["message"]
        assert words["text"] == problem.meta["question"]
        with Image.open(tmp_path / "out" / picture["source"]["path"]) as image:
            assert image.tobytes() == problem.images[0].convert("RGB").tobytes()
    assert (done.trajectories, done.images) == (3, 2)


def test_the_command(run: Path, tmp_path: Path) -> None:
    words = ["export", str(run), "--output", str(tmp_path / "out"), "--only", "rooms/0", "--json"]
    done = command(*words)
    assert json.loads(done.stdout) == {"trajectories": 2, "images": 3, "unknown": {}}
    shutil.rmtree(tmp_path / "out")
    told = command(*words[:-3])
    assert "6 trajectories, 3 images" in told.stdout
    assert "1 problems are without their questions; rooms/2: there is no task 'rooms'" in told.stderr
    assert "is not empty; choose another folder" in command(*words[:-3], code=2).stderr


def segments_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The segments of a rollout's file: each takes its share of what its step or result joins."""
    found = []
    for step in document["steps"]:
        for told in (step, *step.get("observation", {"results": []})["results"]):
            about, numbers = told["extra"]["selfverify"], told.get("metrics", {})
            content = told.get("message", told.get("content"))
            parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            whole: dict[str, Any] = {
                "tokens": about.get("tokens", numbers.get("completion_token_ids")),
                "logprobs": about.get("logprobs", numbers.get("logprobs", [])),
                "text": "".join(part["text"] for part in parts if part["type"] == "text"),
                "images": [Path(part["source"]["path"]).stem for part in parts if part["type"] == "image"],
            }
            for part in about["segments"]:
                own = {"author": about["author"], "turn": about["turn"], **part}
                for name in whole:
                    own[name], whole[name] = whole[name][: part[name]], whole[name][part[name] :]
                found.append(own)
            assert not any(whole.values())
    return found


def test_a_whole_rollout_is_in_its_file(tmp_path: Path) -> None:
    """To the last bit: tokens, log-probabilities, channels, verdicts; a lost one, too."""
    picture = Image.new("RGB", (6, 4), "teal")
    verdict = Verdict(0.1 + 0.2, True, [1, "a", None], "k", "", 1 / 3, {"part": 1e-17}, "reader")
    segments = [
        Segment("action", [5, 6], [-0.5, -1 / 3], CALL + "<|im_end|>", finish=Finish.STOP),
        Segment("observation", [7, 8, 9], [0.0] * 3, "seen", "environment", 1, images=[picture, picture]),
        Segment("answer", [10], [-0.0], "a\u2028", turn=1, parsed=verdict, values={"doubt": 1 / 7}),
        Segment("score", [11, 12], [-2.5e-9, -30.0], "0.5", turn=1, finish=Finish.LENGTH),
    ]
    whole = Trajectory(segments, {"sampled": 0.5}, {"answer": 2 / 3}, {"own": [1, {"x": None}]})
    bare = Trajectory([Segment("answer", [1, 2], [], "no log-probs", finish=Finish.STOP, parsed=verdict)])
    lost = Trajectory([Segment("observation", [], author="environment", finish=Finish.ERROR)])
    images: dict[str, Image.Image] = {}
    row = record(3, Group(Problem("p/1", []), [whole, bare, lost]), images)
    header = {"step": 12, "problems": 2, "weights": "w", "seed": 0}
    log = tmp_path / "run" / "rollouts" / "step-000012.process-0-of-1.jsonl"
    rows = [RecordedGroup(0, "p/0", skipped="it has no image"), row]
    write_journal(log, RecordedGroup, header, rows)
    log.with_suffix("").mkdir()
    for name, image in images.items():
        image.save(log.with_suffix("") / f"{name}.png")

    out = tmp_path / "out"
    assert export_atif(tmp_path / "run", out, rollouts=True) == Exported(3, 1)
    made = documents(out)
    assert [*made] == [f"step-000012-problem-0003-sample-0{n}.json" for n in range(3)]
    written = read_journal(log, RecordedGroup)[1][3].trajectories
    for number, document in enumerate(made.values()):
        about = document["extra"]["selfverify"]
        plain = {"segments": segments_in(document)} | {k: about[k] for k in ("scores", "rewards", "parsed")}
        again = TypeAdapter(RecordedTrajectory).validate_json(json.dumps(plain))
        assert again == written[number] and repr(again) == repr(written[number])
        assert (about["problem"], about["index"], about["number"]) == ("p/1", 3, number)
        assert about["settings"] == header
    acts, answers = made["step-000012-problem-0003-sample-00.json"]["steps"]
    assert acts["metrics"]["completion_token_ids"] == [5, 6] and acts["metrics"]["logprobs"] == [-0.5, -1 / 3]
    assert answers["message"] == "a\u20280.5" and answers["metrics"]["completion_tokens"] == 3
    (log.with_suffix("") / f"{next(iter(images))}.png").unlink()
    with pytest.raises(DataError, match=r"step-000012.*: problem p/1, trajectory 0: the image .* is missing"):
        export_atif(tmp_path / "run", out, rollouts=True)
    write_journal(log, RecordedGroup, header | {"step": "12"}, rows)
    with pytest.raises(DataError, match=r"step-000012.*, line 1: its step is '12' and no whole number"):
        export_atif(tmp_path / "run", out, rollouts=True)
