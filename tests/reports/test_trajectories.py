"""Trajectories in ATIF as a page: our own, exported, and those of other agents, which are hostile."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from typer.testing import CliRunner

from browser import DESKTOP, PHONE, look, missing, open_browser
from samples import sample, write_samples
from selfverify.cli.main import app
from selfverify.core.errors import DataError
from selfverify.evaluation.store import StoredStep, StoredVerdict
from selfverify.experiments.data_export import Portion, export_atif
from selfverify.reports.film_strip import MOST_STEPS, embedded
from selfverify.reports.report import write_report
from selfverify.reports.trajectories import LONGEST_TEXT, MOST_SHOWN

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def picture(path: str, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"media_type": kind, "path": path}}


def foreign(version: str = "ATIF-v1.6", **changes: Any) -> dict[str, Any]:
    """A trajectory as another agent would write it."""
    return {
        "schema_version": version,
        "session_id": "s-1",
        "agent": {"name": "clicker", "version": "2.1", "model_name": "some-model", "tool_definitions": []},
        "steps": [
            {"step_id": 1, "source": "system", "message": "You use a phone."},
            {
                "step_id": 2, "timestamp": "2026-01-01T00:00:00Z", "source": "user",
                "message": [{"type": "text", "text": "Set an alarm."}, picture("images/home.png")],
            },
            {
                "step_id": 3, "source": "agent", "message": "I open the clock.",
                "reasoning_content": "Where is it?",
                "tool_calls": [{"tool_call_id": "c1", "function_name": "tap", "arguments": {"x": [4]}}],
                "observation": {"results": [
                    {"source_call_id": "c1", "content": [picture("images/clock.jpg", "image/jpeg")]},
                    {"content": None},
                ]},
                "metrics": {"prompt_tokens": 1234, "completion_tokens": 20, "cost_usd": 0.029804999},
            },
            {"step_id": 4, "source": "agent", "message": [picture("images/home.png")]},
        ],
        "final_metrics": {"total_prompt_tokens": 1234567, "total_steps": 4},
        "notes": "a trial",
        "of_a_later_version": {"a": 1},
    } | changes  # fmt: skip


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A job's folder, whose trajectory lies deeper, beside other files."""
    agent = tmp_path / "jobs" / "trial-1" / "agent"
    (agent / "images").mkdir(parents=True)
    Image.new("RGB", (40, 60), "navy").save(agent / "images" / "home.png")
    Image.new("RGB", (1300, 700), "darkorange").save(agent / "images" / "clock.jpg")
    (agent / "trajectory.json").write_text(json.dumps(foreign()))
    (agent.parent / "result.json").write_text('{"reward": 1}')
    (agent.parent / "broken.json").write_text("{")
    (agent.parent / "quotes.json").write_text(json.dumps({"trajectory": foreign()}))
    return tmp_path / "jobs"


def page_of(folder: Path) -> str:
    return write_report([folder], folder.parent / "page.html").read_text("utf-8")


def test_another_agents_trajectory(trial: Path) -> None:
    page = page_of(trial)
    assert "1 files of trajectories" not in page and "1 trajectory in" in page
    assert "trial-1/agent/trajectory.json" in page and "clicker 2.1" in page
    for text in (
        "You use a phone.",
        "Where is it?",
        "calls tap",
        "observation of tap",
        "prompt tokens 1,234",
        "USD 0.0298",
    ):
        assert text in page
    assert page.count("<image ") == 2 and page.count("<use ") == 1
    # Nothing of what only runs have.
    assert "learning curves" not in page and "Before and after" not in page and "left-out" not in page[9000:]


@pytest.mark.parametrize("version", ["ATIF-v1.0", "ATIF-v1.4", "ATIF-v1.8", "ATIF-v1.99"])
def test_all_versions_1_are_read(trial: Path, version: str) -> None:
    (trial / "t.json").write_text(json.dumps(foreign(version)))
    assert "2 trajectories in" in page_of(trial)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("https://host.example/a.png", "is not in a file, and nothing is fetched"),
        ("file:///etc/passwd", "is not in a file, and nothing is fetched"),
        ("data:image/png;base64,AAAA" + "A" * 500, "is not in a file, and nothing is fetched"),
        ("//host.example/a.png", "lies outside the folder"),
        ("../../secret.png", "lies outside the folder"),
        ("images/../../../secret.png", "lies outside the folder"),
        ("/etc/passwd", "lies outside the folder"),
        ("link.png", "lies outside the folder"),
        ("circle.png", "lies outside the folder"),
        ("a\0b.png", "lies outside the folder"),
        ("images", "is missing or unreadable"),
        ("pipe.png", "is missing or unreadable"),
        ("program.eps", "is missing or unreadable"),
        ("none.png", "is missing or unreadable"),
        ("bomb.png", "is missing or unreadable"),
        (ATTACK, "is missing or unreadable"),
        ("a" * 300, "File name too long"),
        ("a/" * 3000, "File name too long"),
    ],
)
def test_images_that_are_not_shown(
    trial: Path, path: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is written all the same, and says why."""
    agent = trial / "trial-1" / "agent"
    Image.new("RGB", (4, 4)).save(trial / "secret.png")
    (agent / "link.png").symlink_to(trial / "secret.png")
    (agent / "circle.png").symlink_to(agent / "circle.png")
    os.mkfifo(agent / "pipe.png")
    Image.new("RGB", (4, 4)).save(agent / "program.eps")
    Image.new("L", (300, 300)).save(agent / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 44_000)  # errors begin at twice as many
    steps = [{"step_id": 1, "source": "agent", "message": [picture(path)]}]
    (agent / "trajectory.json").write_text(json.dumps(foreign(steps=steps)))
    page = page_of(trial)
    assert said in page and "data:image" not in page.replace(path[:80], "") and "<image " not in page
    assert page.count("<script>") == 1 and len(page) < 60_000


def test_hostile_words_are_words(trial: Path) -> None:
    """Wherever they stand; long ones lose their middle."""
    steps = [
        {
            "step_id": 1, "source": ATTACK, "message": ATTACK + "x" * 3 * LONGEST_TEXT,
            "reasoning_content": ATTACK,
            "tool_calls": [{"tool_call_id": ATTACK, "function_name": ATTACK, "arguments": {ATTACK: ATTACK}}],
            "observation": {"results": [
                {"source_call_id": ATTACK, "content": [{"type": ATTACK, "text": ATTACK}]},
            ]},
            "extra": {"selfverify": {
                "values": {ATTACK: 1.0}, "verdict": {"correct": True, "answer": ATTACK}, "finish": ATTACK,
            }},
        },
        {"step_id": 2, "source": "agent", "message": "", "extra": {"selfverify": {"values": [ATTACK]}}},
        {"step_id": 3, "source": "agent", "message": "", "extra": {"selfverify": ATTACK}},
    ]  # fmt: skip
    agent = {"name": ATTACK, "version": ATTACK, "model_name": ATTACK}
    own = {"selfverify": {"kind": "other", "sample": [ATTACK], "answer": ATTACK, "rewards": {ATTACK: 1}}}
    inner = foreign(trajectory_id=ATTACK)
    changes = {"steps": steps, "agent": agent, "notes": ATTACK, "trajectory_id": ATTACK, "extra": own}
    (trial / "bad.json").write_text(json.dumps(foreign(**changes, subagent_trajectories=[inner])))
    page = page_of(trial)
    assert page.count("<script>") == 1 and "<img src=x" not in page and "&lt;script&gt;alert(1)" in page
    assert "characters left out" in page and len(page) < 200_000
    assert "bad.json, subagent &lt;script" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(foreign("ATIF-v2.0")), r"t\.json: schema_version: .*versions 1\.x is read"),
        (json.dumps(foreign(steps=[{"step_id": 1, "source": "agent"}])), r"t\.json: steps\.0\.message: "),
        (json.dumps(foreign(agent="me")), r"t\.json: agent: "),
        (json.dumps(foreign())[:-40], r"t\.json: Invalid JSON"),
        ('{"schema_version": "ATIF-v1.6", "extra": ' + "[" * 100_000, r"t\.json: Invalid JSON"),
        (json.dumps(foreign(extra=[])), r"t\.json: extra: "),
    ],
)
def test_a_file_that_is_none_is_named(trial: Path, text: str, said: str) -> None:
    (trial / "t.json").write_text(text)
    with pytest.raises(DataError, match=said):
        page_of(trial)


def test_an_integer_that_no_float_holds(trial: Path) -> None:
    verdict = {"correct": True, "answer": [10**400, 0.5]}
    steps = [{"step_id": 1, "source": "agent", "message": "x", "extra": {"selfverify": {"verdict": verdict}}}]
    (trial / "t.json").write_text(json.dumps(foreign(steps=steps)))
    assert f"[1{'0' * 400}, 0.5]" in page_of(trial)


def test_a_page_has_only_so_many(trial: Path) -> None:
    for number in range(MOST_SHOWN + 3):
        (trial / f"{number:03d}.json").write_text(json.dumps(foreign()))
    page = page_of(trial)
    assert page.count('class="strip"') == MOST_SHOWN and "4 more files of this folder are not shown" in page


def test_a_strip_has_only_so_many_messages(trial: Path) -> None:
    """The first and the last are shown; a step's observations count as well."""
    results = [{"content": f"seen {number}."} for number in range(3 * MOST_STEPS)]
    steps = [
        {"step_id": 1, "source": "agent", "message": "begun.", "observation": {"results": results}},
        {"step_id": 2, "source": "agent", "message": "ended."},
    ]
    [file] = trial.rglob("trajectory.json")
    file.write_text(json.dumps(foreign(steps=steps)))
    page = page_of(trial)
    assert page.count('<section class="step') == MOST_STEPS
    assert "begun." in page and "seen 0." in page and "ended." in page and f"seen {MOST_STEPS}." not in page
    assert f"{2 * MOST_STEPS + 3} messages are not shown here" in page


def test_pictures_of_16_bits_keep_their_brightness(tmp_path: Path) -> None:
    Image.new("I;16", (4, 4), 32_896).save(tmp_path / "grey.png")
    data, note = embedded(tmp_path, "grey.png")
    assert note is None and data is not None
    with Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))) as shown:
        assert shown.mode == "RGB" and shown.getpixel((1, 1)) == (128, 128, 128)


def test_subagents_count_as_trajectories(trial: Path) -> None:
    [file] = trial.rglob("trajectory.json")
    file.write_text(json.dumps(foreign(subagent_trajectories=[foreign()] * (2 * MOST_SHOWN))))
    assert page_of(trial).count('class="strip"') == MOST_SHOWN


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_to_a_trajectory_elsewhere_is_not_shown(trial: Path, tmp_path: Path) -> None:
    outside = tmp_path / "private.json"
    outside.write_text(json.dumps(foreign(notes="private words")))
    (trial / "link.json").symlink_to(outside)
    (trial / "again.json").symlink_to(next(trial.rglob("trajectory.json")))
    page = page_of(trial)
    assert "private words" not in page and "link.json" not in page and "again.json" in page


def test_a_folder_without_trajectories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}')
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--output", str(tmp_path / "r.html")])
    assert done.exit_code == 2 and "holds nothing to report" in done.stderr


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of ours about one problem, exported."""
    folder = tmp_path_factory.mktemp("ours")
    (folder / "eval" / "images").mkdir(parents=True)
    (folder / "eval" / "gallery").mkdir()
    for name, colour, size in (("wide", "navy", (640, 360)), ("tall", "darkorange", (320, 480))):
        Image.new("RGB", size, colour).save(folder / "eval" / "images" / f"{name}.png")
    Image.new("RGB", (64, 64), "teal").save(folder / "eval" / "gallery" / "0.png")
    samples = []
    for number in range(2):
        steps = [
            StoredStep("policy", 0, "action", "I look.", [], "stop", {"tool_errors": 1.0}, None),
            StoredStep("environment", 1, "observation", "Home.", ["wide.png"], None, {}, None),
            StoredStep(
                "policy", 1, "answer", ATTACK, [], "stop", {}, StoredVerdict("on", "on", bool(number))
            ),
            StoredStep("environment", 2, "observation", "Sure?", ["tall.png"], None, {}, None),
            StoredStep("policy", 2, "answer", "Yes.", [], "length", {}, StoredVerdict("on", "on", True)),
        ]
        text = "".join(step.text for step in steps)
        samples.append(sample("talk/0", number, bool(number), 0.8 * number, steps=steps, text=text))
    samples += [sample("talk/1", number, True, 0.5, text="At once.") for number in range(2)]
    write_samples(folder / "eval" / "samples.jsonl", {"task": "talk"}, samples)
    entry = {"id": "talk/0", "question": "Is the alarm on?", "target": "on", "image": "0.png"}
    (folder / "eval" / "gallery" / "problems.json").write_text(json.dumps([entry]))
    export_atif(folder / "eval", folder / "exported")
    return folder


def test_our_own_are_shown_as_their_evaluation(exported: Path) -> None:
    """The same gallery, figures and images as the folder that they come from."""

    def body(folder: Path) -> str:
        text = write_report([folder], exported / "page.html").read_text("utf-8")
        cards = text[text.index('<article class="card') : text.index("</article>")]
        # Names of images differ: by their folder.
        for name in sorted({part.split('"')[0] for part in cards.split("shown-")[1:]}):
            cards = cards.replace(name, "")
        return cards

    assert body(exported / "exported") == body(exported / "eval")
    page = write_report([exported / "exported"], exported / "page.html").read_text("utf-8")
    assert "Before and after" in page and "pass@1" in page.lower() and "turn" in page


def test_a_part_of_a_problem_is_shown_as_trajectories(exported: Path) -> None:
    export_atif(exported / "eval", exported / "part", Portion(limit=3))
    page = page_of(exported / "part")
    assert "3 trajectories in" in page and "tool_errors 1" in page and "cut off" in page
    assert "Is the alarm on?" in page and page.count("<image ") == 3 and 'class="wrong"' in page


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with open_browser() as found:
        yield found


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["screen", "phone"])
def test_strips_in_a_browser(driver: webdriver.Chrome, trial: Path, size: tuple[int, int]) -> None:
    """The arrow keys go through a foreign trajectory, its images are seen, and nothing is loaded or run."""
    remote = [{"step_id": 1, "source": "agent", "message": [picture("http://127.0.0.1:9/a.png"), {
        "type": "text", "text": ATTACK + "wide " * 200 + "w" * 900}]}]  # fmt: skip
    (trial / "z.json").write_text(json.dumps(foreign(steps=remote, notes="n" * 900)))
    look(driver, size)
    driver.get(write_report([trial], trial.parent / "page.html").as_uri())
    first, second = driver.find_elements(By.CLASS_NAME, "strip")
    assert len(first.find_elements(By.CLASS_NAME, "step")) == 6
    assert driver.execute_script("return document.documentElement.scrollWidth") <= size[0]
    driver.execute_script("arguments[0].focus()", first)
    for _ in range(3):
        ActionChains(driver).send_keys(Keys.ARROW_RIGHT).perform()
    script = "return [...arguments[0].children].findIndex(c => c.classList.contains('at'))"
    assert driver.execute_script(script, first) == 2 and driver.execute_script(script, second) == -1
    colours = []
    for svg in first.find_elements(By.CSS_SELECTOR, "svg"):
        driver.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", svg)
        with Image.open(io.BytesIO(svg.screenshot_as_png)) as seen:
            colours.append(seen.convert("RGB").getpixel((seen.width // 2, seen.height // 2)))
    assert colours[0] == colours[2] == (0, 0, 128) and abs(colours[1][0] - 255) < 4
    assert second.find_elements(By.TAG_NAME, "img") == [] and "nothing is fetched" in second.text
    assert driver.get_log("browser") == []
