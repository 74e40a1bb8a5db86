"""Where an evaluation ends, what it leaves out, and going on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_files import base64_png, png, write_jsonl
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy

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
    """One that does not name its code is."""
    store, task = tmp_path / "samples.jsonl", make_task("digits-pick")
    config = EvaluationConfig(problems=1, samples=1)

    def measure() -> Any:
        return evaluate(policy, task, config, store, max_new_tokens=2)

    found, written = measure(), store.read_text()
    assert read_samples(store)[0]["image_backend"] == "Qwen2VLImageProcessorPil"
    header, *rows = written.splitlines(keepends=True)
    older = json.loads(header)
    del older["settings"]["image_backend"]
    store.write_text("".join([json.dumps(older) + "\n", *rows]))
    assert measure() == found
    store.write_text(written)
    assert measure() == found
    monkeypatch.setattr(Policy, "image_backend", "Qwen2VLImageProcessor")
    with pytest.raises(ConfigError, match="image_backend was 'Qwen2VLImageProcessorPil' and is now 'Qwen2VL"):
        measure()
