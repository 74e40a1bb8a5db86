"""Data of looking again: collected, branched, induced, judged, paired; a kill loses and doubles nothing."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.core.test_files import full_disk
from tests.experiments.looks.looks_files import write_lines
from tests.experiments.looks.looks_recipe import far_recipe
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError, FileError
from selfverify.evaluation.samples import IMAGES, written_images
from selfverify.experiments import visual_data
from selfverify.experiments.command_config import TeacherConfig
from selfverify.experiments.recipe import to_yaml
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.visual_data import (
    INDUCE,
    TraceIndex,
    Way,
    branch_looks,
    collect_looks,
    transcript,
)
from selfverify.experiments.visual_sets import judge_looks, make_sets, read_pairs
from selfverify.policy.policy import Policy
from selfverify.visual.pairs import Pairing
from selfverify.visual.traces import VisualTrace
from serving_servers import FakeUpstream, Loop
from tables import put, yaml_cases

EXPERT = TeacherConfig(expert=True)
FREE = Pairing(match_lengths=False)


def all_traces(folder: Path) -> list[VisualTrace]:
    """The traces of a folder's journals, in their order."""
    index = TraceIndex(folder)
    return [trace for source, _, row in index.rows() for _, trace in index.traces_of(source, row)]


def wrong_server(servers: Loop, text: str = "<think>7</think><answer>0</answer>") -> tuple[str, FakeUpstream]:
    fake = FakeUpstream(write=lambda body, i: text)
    return servers.upstream(fake), fake


def test_an_experts_looks_become_a_set(tmp_path: Path) -> None:
    """Every conversation is there with its images and channels, and its steps."""
    done = collect_looks(far_recipe(), EXPERT, tmp_path, problems=6)
    assert (done.traces, done.correct, done.lost) == (6, 6, 0)
    made = make_sets(tmp_path, FREE)
    assert (made.traces, made.sft, made.pairs, made.sft_dropped) == (6, 6, 0, {})
    assert made.pairs_dropped == {"no wrong trace of the problem": 6}
    lines = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    for line in lines:
        told = [m["content"] for m in line["messages"] if not isinstance(m["content"], str)]
        shown = [part["image"] for parts in told for part in parts if part["type"] == "image"]
        turns = [m for m in line["messages"] if m["role"] == "assistant"]
        assert len(shown) == len(turns) and all((tmp_path / name).is_file() for name in shown)
        assert [cut[0][0] for cut in line["cuts"]] == ["plan"] * (len(turns) - 1) + ["answer"]
        assert [step["step"] for step in line["steps"]] == [*range(1, len(turns))]
    again = (tmp_path / "sft.jsonl").read_bytes()
    make_sets(tmp_path, FREE)
    assert (tmp_path / "sft.jsonl").read_bytes() == again
    with pytest.raises(ConfigError, match="samples"):
        collect_looks(far_recipe(), EXPERT, tmp_path, problems=6, samples=2)


def test_traces_are_learnt_as_if_demonstrated(tmp_path: Path, policy: Policy) -> None:
    """The same tokens, images and channels, whether the task demonstrates them or a file does."""
    collect_looks(far_recipe(), EXPERT, tmp_path, problems=4)
    make_sets(tmp_path, FREE)
    far, file = make_task("digits-far"), str(tmp_path / "sft.jsonl")
    read = make_task("conversations", validation=file, learn="conversations")
    method, sampling = make_method("conversations-sft", share_turns=True), SamplingConfig()
    for index in range(4):
        shown, imitated = (
            method.rollout(policy, task, [task.problem(split, 0, index)], [index], sampling)
            for task, split in ((far, "train"), (read, "validation"))
        )
        assert list(shown.prompts[0].ids) == list(imitated.prompts[0].ids)
        one, other = shown.groups[0].trajectories[0], imitated.groups[0].trajectories[0]
        told = [[(s.channel, s.tokens) for s in each.segments] for each in (one, other)]
        assert told[0] == told[1]
        seen = [[i.convert("RGB").tobytes() for s in t.segments for i in s.images] for t in (one, other)]
        assert seen[0] == seen[1] and len(seen[0]) == int(one.rewards["turns"]) - 1
        assert one.rewards["turns"] == other.rewards["turns"]


@pytest.mark.parametrize(
    ("way", "asked", "kind", "why"),
    [
        ("induced", [*INDUCE], "wrong, induced", "they were induced to be wrong"),
        ("hurried", ["\nAnswer."], "hasty, hurried", "they were told to answer at once"),
    ],
)
def test_a_server_goes_on_wrongly_from_the_middle(
    way: Way, asked: list[str], kind: str, why: str, tmp_path: Path, servers: Loop
) -> None:
    """It is shown what was shown then, with the request; the trace does not have the request in it."""
    collect_looks(far_recipe(), EXPERT, tmp_path, problems=5)
    url, fake = wrong_server(servers)
    server = TeacherConfig(server=url, model="m")
    done = branch_looks(far_recipe(), server, tmp_path, way)
    assert (done.traces, done.correct, done.lost) == (5, 0, 0) and len(fake.seen) == 5
    for body in fake.seen:
        *_, last = body["messages"]
        assert last["role"] == "user" and last["content"][-1]["text"].endswith(tuple(asked))
        images = [p for m in body["messages"] if m["role"] == "user" for p in m["content"]]
        turns = sum(m["role"] == "assistant" for m in body["messages"])
        assert sum(p["type"] == "image_url" for p in images) == turns + 1 >= 2
    induced = [trace for trace in all_traces(tmp_path) if trace.source == way]
    said = json.dumps([trace.messages for trace in induced])
    assert len(induced) == 5 and not any(json.dumps(words)[1:-1] in said for words in asked)
    used = {words for words in asked if words in json.dumps(fake.seen) or "\n" in words}
    assert len(used) >= min(len(asked), 2), "each request has one of several prompts"
    assert all(len(trace.cuts) == len(trace.turns) == len(trace.steps) + 1 for trace in induced)
    made = make_sets(tmp_path, FREE)
    assert made.kinds == {kind: 5} and made.sft_dropped == {why: 5}
    for pair in read_pairs(tmp_path):
        assert len(pair.prompt) >= 3 and pair.rejected[-1]["content"].endswith("<answer>0</answer>")
        assert pair.chosen_cuts[-1] == [["answer", 0]] == pair.rejected_cuts[-1]


def test_the_own_policy_looks_and_branches(tmp_path: Path) -> None:
    """A policy that runs here needs no server; what it says comes out the same when asked again."""
    own = TeacherConfig(own=True, max_tokens=8)
    done = collect_looks(far_recipe(), own, tmp_path / "a", problems=2, samples=2)
    assert done.traces == 4 and done.lost == 0
    collect_looks(far_recipe(), own, tmp_path / "b", problems=2, samples=2)
    one, other = ((tmp_path / name / "collected.jsonl").read_bytes() for name in "ab")
    assert one == other
    collect_looks(far_recipe(), EXPERT, tmp_path / "c", problems=3)
    done = branch_looks(far_recipe(), own, tmp_path / "c", "branched", samples=2, most=2)
    assert done.traces == 4 and done.lost == 0
    parents = {trace.id: trace for trace in all_traces(tmp_path / "c") if trace.source == "sampled"}
    for trace in all_traces(tmp_path / "c"):
        if trace.source == "branched":
            parent = parents[trace.id.partition("/branched")[0]]
            kept = len(trace.turns) - 1
            assert trace.turns[:1] == parent.turns[:1] and trace.problem == parent.problem
            assert kept >= 1 and len(trace.cuts) == len(trace.turns)


def test_what_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no collected\.jsonl"):
        branch_looks(far_recipe(), TeacherConfig(own=True), tmp_path, "branched")
    with pytest.raises(ConfigError, match=r"has no collected\.jsonl"):
        judge_looks(tmp_path / "none", TeacherConfig(server="http://127.0.0.1:9", model="m"))
    assert not (tmp_path / "none").exists()
    collect_looks(far_recipe(), EXPERT, tmp_path, problems=2)
    with pytest.raises(ConfigError, match="a script cannot go on"):
        branch_looks(far_recipe(), EXPERT, tmp_path, "branched")
    with pytest.raises(ConfigError, match="seed 0, and the recipe has 3"):
        branch_looks(far_recipe(seed=3), TeacherConfig(own=True), tmp_path, "branched")


def test_traces_whose_replies_have_changed_are_lost(tmp_path: Path, servers: Loop) -> None:
    """A conversation that cannot be held again as it was is not gone on from."""
    collect_looks(far_recipe(), EXPERT, tmp_path, problems=1)
    path = tmp_path / "collected.jsonl"
    path.write_text(path.read_text().replace('"2:"', '"3:"'))
    url, _ = wrong_server(servers)
    done = branch_looks(far_recipe(), TeacherConfig(server=url, model="m"), tmp_path, "branched")
    assert done.lost == 1 and "gets another reply than" in done.reason


def test_examples_are_put_before_the_question_in_words(tmp_path: Path, servers: Loop) -> None:
    collect_looks(far_recipe(), EXPERT, tmp_path / "shown", problems=3)
    make_sets(tmp_path / "shown", FREE)
    url, fake = wrong_server(servers)
    server = TeacherConfig(server=url, model="m")
    collect_looks(far_recipe(), server, tmp_path / "new", 1, shots=str(tmp_path / "shown" / "sft.jsonl"))
    [body] = fake.seen
    first, image, question = body["messages"][0]["content"]
    assert first["text"].count("Example ") == 2 and "[image 2]\nYou: <think>" in first["text"]
    assert image["type"] == "image_url" and question["text"].startswith("Start in cell")
    [trace] = all_traces(tmp_path / "new")
    assert "Example" not in json.dumps(trace.messages) and len(trace.images) == 1
    assert transcript(trace.messages).startswith("Shown: [image 1]Start in cell")
    (tmp_path / "bad.jsonl").write_text('{"messages": 5}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl, line 1: it is no trace"):
        collect_looks(far_recipe(), server, tmp_path / "x", 1, shots=str(tmp_path / "bad.jsonl"))


def test_an_image_without_a_range_is_a_row_less(tmp_path: Path, servers: Loop) -> None:
    """It is counted with its row's name, and the other rows are asked."""
    url, _ = wrong_server(servers)
    for name, mode in (("f.tif", "F"), ("c.jpg", "CMYK")):
        Image.new(mode, (40, 40)).save(tmp_path / name)
    rows = [{"id": n, "question": "?", "answer": "7", "images": [n]} for n in ("f.tif", "c.jpg")]
    write_lines(tmp_path / "rows.jsonl", rows)
    task = {"name": "look", "train": str(tmp_path / "rows.jsonl"), "look": {"tools": ["crop"]}}
    recipe = far_recipe(task=task)
    done = collect_looks(recipe, TeacherConfig(server=url, model="m"), tmp_path / "looks", 2)
    assert (done.traces, done.unusable) == (1, 1) and "f.tif: an image cannot be shown" in done.reason
    with pytest.raises(DataError, match=r"no collected trace is right .*; 1 problems: .*f\.tif: an image"):
        branch_looks(recipe, TeacherConfig(server=url, model="m"), tmp_path / "looks", "branched")


def test_nothing_right_says_why(tmp_path: Path, servers: Loop) -> None:
    url, _ = wrong_server(servers)
    collect_looks(far_recipe(), TeacherConfig(server=url, model="m"), tmp_path, problems=2)
    with pytest.raises(DataError, match="no right trace is left of 2; dropped: 2 because no tool was used"):
        make_sets(tmp_path, FREE)


@yaml_cases
def test_a_damaged_line_is_named(tmp_path: Path, place: list[Any], value: Any, said: str) -> None:
    """Whatever reads the folder: the file, the problem and what is wrong."""
    collect_looks(far_recipe(), EXPERT, tmp_path, problems=2)
    path = tmp_path / "collected.jsonl"
    head, line, *rest = path.read_text().splitlines(True)
    row = json.loads(line)
    put(row, place, value)
    path.write_text("".join([head, json.dumps(row) + "\n", *rest]))
    named = rf"collected.jsonl: problem {row['problem']}: .*{said}"
    server = TeacherConfig(server="http://127.0.0.1:9", model="m")
    for read in (
        lambda: list(all_traces(tmp_path)),
        lambda: make_sets(tmp_path, FREE),
        lambda: branch_looks(far_recipe(), TeacherConfig(own=True), tmp_path, "branched"),
        lambda: judge_looks(tmp_path, server),
    ):
        with pytest.raises(DataError, match=named):
            read()


def test_a_collection_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted one stores what it has; the same files come out as of one that was not."""
    monkeypatch.setattr("selfverify.experiments.teaching.AT_ONCE", 2)
    calls: list[int] = []

    def stop(number: int, total: int) -> None:
        calls.append(number)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_looks(far_recipe(), EXPERT, tmp_path / "a", problems=6, progress=stop)
    journal = tmp_path / "a" / "collected.jsonl"
    assert len(journal.read_text().splitlines()) == 5
    with journal.open("a") as file:
        file.write('{"index": 4, "prob')  # what a kill may leave
    collect_looks(far_recipe(), EXPERT, tmp_path / "a", problems=6)
    collect_looks(far_recipe(), EXPERT, tmp_path / "b", problems=6)
    assert journal.read_bytes() == (tmp_path / "b" / "collected.jsonl").read_bytes()
    one, other = ({p.name for p in (tmp_path / name / IMAGES).iterdir()} for name in "ab")
    assert one == other


@pytest.mark.parametrize("room", [0, 5, 13])
def test_a_full_disk_ends_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """No conversation counts as broken off, and the next call makes what one would have made."""
    whole, folder = tmp_path / "whole", tmp_path / "looks"
    collect_looks(far_recipe(), EXPERT, whole, problems=4)
    written: list[str] = []

    def until_full(images: Path, shown: Any) -> list[str]:
        if len(written) == room:
            raise FileError(errno.ENOSPC, "the disk is full", str(images))
        written.extend(written_images(images, shown))
        return written[-1:]

    monkeypatch.setattr(visual_data, "written_images", until_full)
    with pytest.raises(FileError, match=r"looks/images: the disk is full"):
        collect_looks(far_recipe(), EXPERT, folder, problems=4)
    monkeypatch.undo()
    collect_looks(far_recipe(), EXPERT, folder, problems=4)
    for file in (path.relative_to(whole) for path in whole.rglob("*") if path.is_file()):
        found, wanted = ((place / file).read_bytes().split(b"\n") for place in (folder, whole))
        assert sorted(found) == sorted(wanted), file  # lines stand as conversations ended


def test_a_full_disk_ends_the_sets(tmp_path: Path, servers: Loop) -> None:
    """A file is named, those that were there stay whole, and the next call makes what one would have made."""
    collect_looks(far_recipe(), EXPERT, tmp_path, problems=5)
    url, _ = wrong_server(servers)
    branch_looks(far_recipe(), TeacherConfig(server=url, model="m"), tmp_path, "induced")
    wanted = make_sets(tmp_path, FREE)
    made = [(path, path.read_bytes()) for path in (tmp_path / "sft.jsonl", tmp_path / "pairs.jsonl")]
    for room in (0, *(len(content) - 1 for _, content in made)):
        with (
            full_disk(room),
            pytest.raises(FileError, match=r"(sft|pairs)\.jsonl: the file would become lar"),
        ):
            make_sets(tmp_path, FREE)
        assert all(path.read_bytes() == content for path, content in made)
        assert not list(tmp_path.glob("*.partial")) and make_sets(tmp_path, FREE) == wanted


def test_the_commands(tmp_path: Path, servers: Loop) -> None:
    """Each says what it made and what it left out; a leak ends with status 1."""
    recipe = tmp_path / "far.yaml"
    recipe.write_text(to_yaml(far_recipe()))
    folder = str(tmp_path / "looks")
    url, _ = wrong_server(servers)

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["visual", *words])

    shown = run("collect", str(recipe), "--expert", "--problems", "6", "--output", folder)
    assert shown.exit_code == 0 and "6 traces, 6 of them right" in shown.output, shown.output
    server = ["--server", url, "--model", "m"]
    shown = run("branch", str(recipe), folder, "--way", "induced", *server, "--json")
    assert json.loads(shown.stdout)["traces"] == 6
    shown = run("sets", folder, "--any-length")
    assert (
        "6 of 12 traces" in shown.output and "6 pairs (6 wrong, induced; decided: 6 by rules)" in shown.output
    )
    assert "they were induced to be wrong" in shown.output
    found = run("leaks", folder, "--json")
    leak = json.loads(found.stdout)
    assert found.exit_code == (0 if leak["passes"] else 1) and leak["pairs"] == 6
    assert "guessed" in run("leaks", f"{folder}/pairs.jsonl").output
    (tmp_path / "looks" / "pairs.jsonl").write_text('{"id": 3}\n')
    assert "pairs.jsonl, line 1: " in run("leaks", folder).output
    assert run("leaks", str(tmp_path)).exit_code == 2
    assert "available here" in run().output
