"""Pages about agents: frames, marks, exhibits, votes; evaluations side by side; nothing becomes markup."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tests.agents.phone.played import call, expert, phone_task, played
from tests.agents.test_agent_episode import Asked

from samples import write_samples
from selfverify.agents.evidence import Vote
from selfverify.agents.judges.jury import Jury
from selfverify.evaluation.evaluate import shown_entry
from selfverify.evaluation.samples import StoredSample
from selfverify.reports.film import PageImages, agent_film, call_text
from selfverify.reports.report import write_report
from selfverify_phone.contents.hostile import TEXTS
from selfverify_phone.task import PhoneAgents
from selfverify_phone.templates import TEMPLATES

EVIL = "".join(TEXTS)
NONE = dict.fromkeys(("sampled", "greedy", "soft"))


def entry(task, problem):
    return json.loads(json.dumps(shown_entry(task, problem, "")))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Before: an agent that gives up, and one whose judge is deceived. After: the expert."""
    folder = tmp_path_factory.mktemp("agents") / "run"
    (folder / "gallery").mkdir(parents=True)
    task = phone_task(hostile=True)
    problems = [
        task.of_template(TEMPLATES[name], 3, f"phone/test/0/{n}")
        for n, name in enumerate(("clock-add", "contacts-add", "reader-mark"))
    ]
    stages: dict[str, list[StoredSample]] = {"before": [], "after": []}
    fooled = Jury(Asked(Vote(True, True, f"Round 1 says {EVIL}", (1,))))
    weak = [
        call("launch", app="clock"), call("tap", id="nothing-here"), call("swipe", direction="up"),
        call("long_press", x1=0, y1=200, x2=540, y2=260), "<b>what</b> {{ 7 * 7 }}" + call("back"),
        call("submit", message=EVIL, evidences=[1, 3]),
    ]  # fmt: skip
    for problem in problems:
        own = (
            played(task, problem, weak, folder, fooled),
            played(task, problem, expert(task, problem), folder),
        )
        for stage, sample in zip(stages, own, strict=True):
            stages[stage].append(replace(sample, scores=dict(NONE)))
    for stage, samples in stages.items():
        write_samples(folder / f"samples-{stage}.jsonl", {"task": "phone"}, samples)
    (folder / "gallery" / "problems.json").write_text(json.dumps([entry(task, p) for p in problems]))
    return folder


def filmed(folder, texts=None, images=None, task=None):
    """The sample and the film of an agent, or of the expert, who sets an alarm."""
    task = task or phone_task()
    problem = task.of_template(TEMPLATES["clock-add"], 0, "p")
    sample = played(task, problem, texts or expert(task, problem), folder)
    target = entry(task, problem)["target"]
    return sample, target, agent_film(sample, target, PhoneAgents, images or PageImages(), folder)


def test_frames_say_what_happened_and_mark_what_is_touched(tmp_path: Path) -> None:
    texts = [
        call("launch", app="clock"), call("fly"), call("tap", id="add"), call("tap", id="gone"),
        call("swipe", direction="up", dist="short"), call("submit", message="Done.", evidences=[2]),
    ]  # fmt: skip
    images = PageImages()
    *_, film = filmed(tmp_path, texts, images)
    assert [frame["title"] for frame in film["frames"]] == [
        "Round 0", "Round 1", "Refused", "Round 2", "Round 3", "Round 4", "Handed in",
    ]  # fmt: skip
    assert [frame["turn"].round for frame in film["frames"]] == [0, 1, None, 2, 3, 4, None]
    marks = [frame["mark"] and frame["mark"].kind for frame in film["frames"]]
    assert marks == [None, "tap", None, None, "swipe", None, None]
    home, clock, _, form, same, *_ = film["frames"]
    assert home["images"][0]["id"] != clock["images"][0]["id"] != form["images"][0]["id"]
    assert form["images"] == same["images"] and "there is no" in same["turn"].error
    assert (
        call_text(clock["turn"].call) == 'launch(app="clock")'
        and clock["said"] == "So."
        and "Alarms" in clock["read"]
    )
    left, top, right, bottom = clock["mark"].box
    assert left < clock["mark"].x < right and top < clock["mark"].y < bottom
    up = same["mark"]
    assert up.to[0] == up.x and up.to[1] < up.y
    end = film["end"]
    assert end.truth.complete is False and end.judgement.success is False
    assert sum(end.reward.values()) == pytest.approx(-0.05)
    assert end.message == "Done." and end.evidence == [2] and len(end.judgement.ballots) == 1
    assert len(images.kept) == 4  # five frames, and the refused call left its screen as it was


def test_two_evaluations_stand_side_by_side(run: Path) -> None:
    page = write_report([run], run / "page.html", {"phone": PhoneAgents}).read_text("utf-8")
    assert page.count('<div class="side">') == 2 * page.count('<article class="card panel agent">') > 0
    assert "Before training" in page and "After training" in page and "judged a success" in page
    # The expert is believed and has done it; the other one is believed only.
    assert page.count("✓ done") == page.count("✗ not done") > 0
    assert 'class="step frame exhibit' in page and "Problems and answers" not in page
    # What screens, messages and votes say is text, which no template reads again.
    assert not any(raw in page for raw in (TEXTS[0], "<b>what</b>", "<screen")) and "{{ 7 * 7 }}" in page
    ids = re.findall(r'<image id="(image-\w+)"', page)
    assert len(ids) == len(set(ids)) and set(re.findall(r'href="#(image-\w+)"', page)) == set(ids)
    # Two folders of evaluations do the same.
    for stage in ("before", "after"):
        own = run.parent / stage
        (own / "gallery").mkdir(parents=True, exist_ok=True)
        (own / "samples.jsonl").write_bytes((run / f"samples-{stage}.jsonl").read_bytes())
        (own / "gallery" / "problems.json").write_bytes((run / "gallery" / "problems.json").read_bytes())
    both = write_report(
        [run.parent / "before", run.parent / "after"], run / "both.html", {"phone": PhoneAgents}
    ).read_text("utf-8")
    assert both.count('<div class="side">') == page.count('<div class="side">')


def test_a_long_session_loses_its_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify.reports.film.MOST_STEPS", 8)
    texts = [call("wait", seconds=number) for number in range(12)]
    *_, film = filmed(tmp_path, [*texts, call("submit", message="Done.", evidences=[2])])
    assert [frame.get("title") for frame in film["frames"]] == [
        "Round 0", "Round 1", "Round 2", "Round 3", "Round 4", None, "Round 12", "Handed in",
    ]  # fmt: skip
    assert film["frames"][5] == {"left_out": 7}


def test_a_problem_that_cannot_be_drawn_shows_what_was_read(run: Path, tmp_path: Path) -> None:
    sample, whole, _ = filmed(tmp_path)
    bad = (None, "x", {"reset": {"template": "gone"}, "seed": 1}, {"reset": {"free": 3}, "seed": 0})
    for drawn_by, target in (
        *((PhoneAgents, target) for target in bad),
        (None, whole),
    ):
        film = agent_film(sample, target, drawn_by, PageImages(), tmp_path)
        assert not any(frame["images"] for frame in film["frames"])
        assert "Alarms" in film["frames"][1]["read"]
    damaged = [replace(step, record={"outcome": 3}) for step in sample.steps]
    sample = replace(sample, steps=damaged)
    assert agent_film(sample, None, PhoneAgents, PageImages(), tmp_path) is None
    # Pictures that the agent saw need no drawing.
    sample, *_ = filmed(tmp_path, task=phone_task(show="both"))
    film = agent_film(sample, None, PhoneAgents, PageImages(), tmp_path)
    assert [len(frame["images"]) for frame in film["frames"]] == [1, 1, 1, 1, 1, 0]


def test_pictures_of_16_bits_keep_their_brightness(tmp_path: Path) -> None:
    Image.new("I;16", (4, 4), 32_896).save(tmp_path / "grey.png")
    images = PageImages()
    data = images.kept[images.of_file(tmp_path, "grey.png")["id"]]["data"]
    with Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))) as shown:
        assert shown.mode == "RGB" and shown.getpixel((1, 1)) == (128, 128, 128)
