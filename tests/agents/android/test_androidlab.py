"""AndroidLab's task files."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfverify.agents.android.androidlab import device_question, read_task, read_tasks
from selfverify.core.errors import DataError
from tables import yaml_cases

CLOCK = Path(__file__).with_name("clock.yaml").read_text()


def test_tasks_are_read(tmp_path: Path) -> None:
    """Files of a folder in the order of their names, tasks in the order of the file."""
    (tmp_path / "b.yaml").write_text(CLOCK)
    (tmp_path / "a.yaml").write_text(CLOCK.replace("clock_", "watch_"))
    tasks = read_tasks(tmp_path)
    assert [task.task_id for task in tasks] == ["watch_1", "watch_2", "clock_1", "clock_2"]
    assert tasks[2].model_dump() == {
        "task_id": "clock_1", "instruction": 'Set an alarm for 3PM with the label "meeting" using Clock.',
        "app": "clock", "package": "com.google.android.deskclock", "category": "Alarm set",
        "metric_type": "operation", "metric_func": "evaluation.tasks.clock", "queries": (),
    }  # fmt: skip
    assert tasks[3].instruction == "Wake me up at 6:45."
    assert tasks[3].queries == ("adb shell settings get global airplane_mode_on",)
    assert read_task(tasks[3].model_dump(mode="json")) == tasks[3]
    assert read_tasks(tmp_path / "b.yaml") == tasks[2:]


def test_ids_that_are_numbers_get_the_name_of_the_file(tmp_path: Path) -> None:
    """One of SmartSnap's files numbers its tasks."""
    (tmp_path / "pi_music.yaml").write_text(CLOCK.replace("clock_", ""))
    assert [task.task_id for task in read_tasks(tmp_path)] == ["pi_music_1", "pi_music_2"]


@yaml_cases
def test_faults_name_file_and_task(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Nothing of a faulty file is used."""
    file, old = tmp_path / "clock.yaml", CLOCK if old == "CLOCK" else old
    assert old in CLOCK
    file.write_text(CLOCK.replace(old, new.replace("DEEP", "[" * 5000)))
    with pytest.raises(DataError, match=message) as error:
        read_tasks(file)
    assert str(file) in str(error.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """An empty folder, a missing file, one id in two files, a file of bytes."""
    with pytest.raises(DataError, match="there is no task file"):
        read_tasks(tmp_path)
    with pytest.raises(DataError, match=r"x\.yaml: cannot be read"):
        read_tasks(tmp_path / "x.yaml")
    (tmp_path / "a.yaml").write_text(CLOCK)
    (tmp_path / "b.yaml").write_text(CLOCK)
    with pytest.raises(DataError, match=r"b\.yaml, task clock_1: .*a\.yaml has a task of this id"):
        read_tasks(tmp_path)
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"c\.yaml: no valid YAML"):
        read_tasks(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_bytes(b"#" * (4 * 2**20 + 1))
    with pytest.raises(DataError, match="at most 4,194,304 bytes"):
        read_tasks(tmp_path / "d.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nAPP: *b\n", "line 2: a task file has no aliases"),
        (f"tasks: {'[' * 30}{']' * 30}\n", "line 1: a task file has no 10 levels"),
    ],
    ids=["repeats", "deep"],
)
def test_a_file_that_would_grow_without_end(tmp_path: Path, text: str, said: str) -> None:
    """It is refused before anything is made of it."""
    (tmp_path / "tasks.yaml").write_text(text)
    with pytest.raises(DataError, match=said):
        read_tasks(tmp_path / "tasks.yaml")


@yaml_cases
def test_questions_are_known(query: str) -> None:
    """All that AndroidLab's files ask."""
    assert device_question(query) == query.removeprefix("adb shell ").replace("'", "")


@yaml_cases
def test_what_is_no_question_is_refused(query: str) -> None:
    """A task file cannot make a device do anything."""
    with pytest.raises(ValueError, match="no question"):
        device_question(query)


def test_tasks_as_json_are_checked() -> None:
    """As they come over a wire."""
    good = {"task_id": "a_1", "instruction": "i", "app": "a", "package": "p"}
    assert read_task(good).queries == ()
    for wrong in ({}, {**good, "extra": 1}, {**good, "instruction": ""}, {**good, "queries": ["adb reboot"]}):
        with pytest.raises(DataError, match="Android task"):
            read_task(wrong)
