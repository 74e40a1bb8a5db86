"""Pages about agents and about looking again: frames, marks, exhibits, votes, Δr; nothing becomes markup."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image
from tests.agents.phone.played import call, expert, phone_task, played
from tests.agents.test_agent_episode import Asked
from tests.evaluation.test_looked import far, teach

from samples import sample as stored_sample
from samples import write_samples
from selfverify.agents.evidence import Vote
from selfverify.agents.judges.jury import Jury
from selfverify.core.config import EvaluationConfig
from selfverify.core.episode import PolicyTurn
from selfverify.core.problem import Problem, content_text
from selfverify.core.trajectory import Finish
from selfverify.evaluation.evaluate import evaluate, shown_entry, write_gallery
from selfverify.evaluation.samples import IMAGES, StoredSample, StoredStep, written_images
from selfverify.reports.film import PageImages, agent_film, call_text, film_of_sample, plan_of
from selfverify.reports.report import write_report
from selfverify.serving.backend import FreeQuestion
from selfverify.tasks.base import user_turn
from selfverify.visual.config import VisualConfig
from selfverify.visual.episode import step_of
from selfverify.visual.stopping import After, StopRule, Verified
from selfverify.visual.task import VisualToolTask
from selfverify_phone.contents.hostile import TEXTS
from selfverify_phone.task import PhoneAgents
from selfverify_phone.templates import TEMPLATES
from tables import yaml_cases

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
    for drawn_by, target in (*((PhoneAgents, target) for target in bad), (None, whole)):
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


# --- looking again: frames, boxes, Δr against ε, why it stopped ---------------------------------------------


MARKUP = '<script>document.title = "run"</script><img src="x" onerror="document.title = 1">'
HOSTILE = "".join(TEXTS) + MARKUP
ANSWER = "<answer>15</answer><score>0.9</score>"


def vts(thought: str, box: Sequence[int], image: int = 1) -> str:
    """A step in VTS-V's form."""
    asked = {"image_index": image, "bounding_box": list(box)}
    return json.dumps({"thought": thought, "action_name": "crop", "action": asked})


LOOKS = [vts("The sign?", (200, 100, 600, 500)), vts("Closer.", (250, 0, 500, 500), 2), ANSWER]


def talked(
    folder: Path,
    texts: Sequence[str],
    deltas: Sequence[float | None] = (),
    rule: StopRule | None = None,
    on_stop: Literal["run", "skip"] = "run",
) -> StoredSample:
    """A model says these texts about an image of 400 x 200 pixels; places in thousandths."""
    looking = VisualToolTask(FreeQuestion(), VisualConfig(tools=["crop"], on_stop=on_stop))
    problem = Problem("street", user_turn("Until when?"), [Image.new("RGB", (400, 200), (90, 120, 160))])
    episode = looking.look(problem)
    episode.rule = rule or episode.rule
    episode.reset()
    problem.images[0].save(folder / "street.png")
    steps: list[StoredStep] = []
    for turn, text in enumerate(texts):
        delta = deltas[turn] if turn < len(deltas) else None
        values = {} if delta is None else {"log_ratio": delta, "log_ratio_plan": 0.0}
        reply = episode.step(PolicyTurn(text, [1], Finish.STOP, turn, values))
        if reply.undo:
            del steps[-1]
        else:
            steps.append(StoredStep("policy", turn, "action", text, [], "stop", {}, None))
        if reply.done:
            break
        names = written_images(folder / IMAGES, reply.images)
        told = content_text(reply.content)
        steps.append(StoredStep("environment", turn + 1, "observation", told, names, None, {}, None))
    records = [turn for turn in episode.result().turns if isinstance(turn, dict)]
    for step, record in zip([step for step in steps if step.author == "policy"], records, strict=False):
        step.record = record
    return stored_sample("street", 0, True, None, answer="15", steps=steps)


def shown(folder: Path, one: StoredSample) -> dict[str, Any]:
    images = PageImages()
    film = film_of_sample(one, {1: images.of_file(folder, "street.png")}, images.of_files(folder / IMAGES))
    assert film is not None
    return film


def looked(folder: Path, *talk: Any, **more: Any) -> dict[str, Any]:
    return shown(folder, talked(folder, *talk, **more))


def test_frames_show_where_it_looked_and_what_came_of_it(tmp_path: Path) -> None:
    """Boxes stand in pixels of the image they are drawn on; the overview has them in the question's."""
    film = looked(tmp_path, LOOKS)
    first, second = film["frames"]
    [view], [made] = first["from"], first["made"]
    assert (view["number"], made["number"]) == (1, 2)
    assert {k: view["boxes"][0][k] for k in ("x", "y", "width", "height")} == {
        "x": 80, "y": 20, "width": 160, "height": 80,
    }  # fmt: skip
    assert (made["image"]["width"], made["image"]["height"]) == (160, 80)
    assert first["plan"] == "The sign?" and first["call"].startswith("crop(image_index=1, bounding_box=[200")
    assert second["from"][0]["number"] == 2 and second["from"][0]["boxes"][0]["width"] == 40
    [asked] = film["asked"]
    assert [box["title"] for box in asked["boxes"]] == ["1", "2"]
    assert [asked["boxes"][1][k] for k in ("x", "y", "width", "height")] == [120, 20, 40, 40]
    assert asked["image"] == view["image"] != made["image"]
    assert film["why"] == "The model answered of its own accord after step 2."
    assert (film["answer"], film["said"], film["correct"]) == ("15", ANSWER, True)


@pytest.mark.parametrize(
    ("rule", "last", "zone", "why"),
    [
        (Verified("absolute", 0.5), -0.25, (50 - 25 / 2.3, 50 / 2.3), "\u22120.25 and 0.50"),
        (Verified("signed", 0.5), -2.0, (0.0, 50 + 25 / 2.3), "\u22122.00 and 0.50"),
        (After(2), -0.25, None, "after step 2"),
    ],
)
def test_delta_r_stands_against_epsilon(
    rule: StopRule, last: float, zone: tuple[float, float] | None, why: str, tmp_path: Path
) -> None:
    """The scale reaches 1.15 times the largest value to both sides, here 2.3 nats."""
    film = looked(tmp_path, LOOKS, (2.0, last), rule)
    first, second = (frame["gauge"] for frame in film["frames"])
    assert first["at"] == pytest.approx(50 + 50 * 2.0 / 2.3)
    assert second["at"] == pytest.approx(50 + 50 * last / 2.3)
    if zone is None:
        assert first["zone"] is second["zone"] is None
    else:
        assert second["zone"] == pytest.approx(zone) and (first["inside"], second["inside"]) == (False, True)
    assert why in film["why"]
    assert [frame["step"]["stopped"] for frame in film["frames"]] == ["", "rule"]


def test_a_step_that_was_taken_back(tmp_path: Path) -> None:
    """Its Δr is told where it ended looking; the step before it has its own."""
    film = looked(tmp_path, LOOKS, (2.0, -0.25), Verified("absolute", 0.5), on_stop="skip")
    [frame] = film["frames"]
    assert frame["gauge"]["delta"] == 2.0 and not frame["gauge"]["inside"] and frame["step"]["stopped"]
    assert "after step 1" in film["why"] and "\u22120.25 and 0.50" in film["why"]


@yaml_cases
def test_plans_without_their_calls(text: str, plan: str) -> None:
    assert plan_of(text, called=not text.endswith("broken")) == plan


def test_what_is_missing_or_hostile(tmp_path: Path) -> None:
    """Refused calls, images that are gone, records of any content: a page is made, and says so."""
    texts = [vts(HOSTILE, (0, 0, 2000, 1)), vts(HOSTILE, (200, 100, 600, 500)), HOSTILE, ANSWER]
    one = talked(tmp_path, texts)
    film = shown(tmp_path, one)
    assert film["frames"][0]["step"]["error"] and not film["frames"][0]["made"]
    for path in (tmp_path / IMAGES).iterdir():
        path.unlink()
    record = one.steps[2].record
    assert record is not None
    record["sources"] = [{"source": "x", "region": [HOSTILE], "size": None}, 7]
    record["delta_r"], record["epsilon"] = float("inf"), HOSTILE
    assert shown(tmp_path, one)["frames"][1]["gauge"] is None
    record["delta_r"] = HOSTILE
    write_samples(tmp_path / "samples.jsonl", {"task": "look"}, [one])
    (tmp_path / "gallery").mkdir()
    entry = {"id": "street", "question": HOSTILE, "target": "15", "image": None}
    (tmp_path / "gallery" / "problems.json").write_text(json.dumps([entry]))
    page = write_report([tmp_path], tmp_path / "x.html").read_text("utf-8")
    assert "is missing or unreadable" in page and page.count('<section class="step look') > 1
    for raw in (HOSTILE, "<script>document", "<img src"):
        assert raw not in page


@pytest.mark.parametrize(("name", "value"), [("step", "<b>"), ("step", 1.5), ("stopped", ["cap"])])
def test_a_record_that_is_no_step(name: str, value: Any) -> None:
    """A damaged one is shown as what was said, and breaks no page."""
    record = {"step": 1, "tool": "crop", "arguments": {}, "error": "", "images": [], "sources": []}
    assert step_of(record | {"stopped": ""}) is not None
    assert step_of(record | {"stopped": ""} | {name: value}) is None


def test_the_report_shows_the_steps(load_policy: Any, tmp_path: Path) -> None:
    """An evaluation's conversations that looked are strips of steps, the last of which says what ended it."""
    policy, task = load_policy(), far(stop="after:1")
    teach(policy, task)
    config = EvaluationConfig(problems=2, samples=1)
    evaluate(policy, task, config, tmp_path / "run" / "samples.jsonl")
    write_gallery(task, config, tmp_path / "run" / "gallery", 2)
    page = write_report([tmp_path / "run"], tmp_path / "page.html").read_text("utf-8")
    # What was asked, one step and the answer, twice.
    assert page.count('<section class="step look') == 6 and "looking ends here" in page
