"""`reproduce.matrix` from one end to the other, with tiny policies."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.samples import sample
from tests.serving_servers import Body, FakeUpstream, Loop, tagged

from commands import command
from reproduce.judged_samples import WRITTEN, JudgedProblem, stored_scores
from reproduce.matrix import Models, app, run_matrix
from reproduce.matrix_figures import matrix
from reproduce.tests.test_reward_models import saved
from selfverify.core.errors import ServerError
from selfverify.core.jsonl_store import read_journal
from selfverify.evaluation.samples import StoredSample
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.verifiers.policy_verifiers import PolicyJudge
from tables import yaml_cases


def quiet(text: str) -> None:
    pass


def test_matrix_runs_resumes_and_counts(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrained model writes nothing readable: pass@1 0, no judge's row. Called again, it judges nothing.

    One model is in memory: the second takes the first one's place.
    """
    small = ["evaluation.problems=2", "evaluation.samples=2", "sampling.max_new_tokens=4"]
    recipe = load_recipe("adpo-digits", [*small, "policy.device=cpu"])
    load, alive, most = Policy.load, weakref.WeakSet[Policy](), [0, 0]

    def counted(config: Any) -> Policy:
        policy = load(config)
        alive.add(policy)
        most[:] = [most[0] + 1, max(most[1], len(alive))]
        return policy

    monkeypatch.setattr(Policy, "load", counted)
    models, said = Models({"a": str(tiny_folder), "b": str(tiny_folder)}), list[str]()
    cells = run_matrix(models, recipe, tmp_path, sizes=(1, 2), say=said.append)
    assert most == [4, 1] and {"a answers", "a judges the answers of a", "b judges the answers of a"} < {
        *said
    }
    assert {n: [*rows] for n, rows in cells[0].cells.items()} == {
        1: [("a", "none"), ("b", "none")], 2: [("a", "majority"), ("b", "majority")]
    }  # fmt: skip
    written = {path: path.read_bytes() for path in tmp_path.glob("*-by-*.jsonl")}
    again = run_matrix(models, recipe, tmp_path, sizes=(1, 2), say=quiet)
    assert most == [6, 1] and [*again] == [*cells]
    assert written == {path: path.read_bytes() for path in tmp_path.glob("*-by-*.jsonl")}
    assert "| a | none | **0.0 [0.0, 98.8]** |" in (tmp_path / "matrix.md").read_text()
    assert json.loads((tmp_path / "matrix.json").read_text())["task"] == "digits-pick"


def test_a_reward_model_and_a_server(servers: Loop, tmp_path: Path, tiny_folder: Path) -> None:
    """A served model answers, a policy and a reward model of other makers judge; nothing is made twice."""
    saved(tmp_path / "r7")
    fake = FakeUpstream(write=lambda body, i: tagged(f"answer {i}", f"0.{i}"))
    address, rewarding = f"{servers.upstream(fake)}#m", {"rm": str(tmp_path / "r{seed}")}
    models = Models({"far": address}, judging={"own": str(tiny_folder)}, rewarding=rewarding)
    small = ["task.name=word-sums", "evaluation.problems=3", "evaluation.samples=4"]
    recipe, output = load_recipe("adpo-digits", small), tmp_path / "out"
    found = run_matrix(models, recipe, output, seeds=[7], sizes=(1, 4), say=quiet)
    cells = found[7].cells
    assert [*cells[1]] == [("far", "none")] and ("far", "majority") in cells[4]
    record = json.loads((output / "matrix.json").read_text())
    assert [one["verifier"] for one in record["judging"]] == [
        "far", "own", "own, written", "rm", "text_rule", "text_rule_read"
    ]  # fmt: skip
    assert "| far | rm |" in (output / "matrix.md").read_text()
    header, rows = read_journal(output / "seed-7" / "far-by-rm.jsonl", JudgedProblem)
    assert header["judge"].startswith("reward model ")
    assert [len(rows[index].scores) for index in range(3)] == [4, 4, 4]
    asked = len(fake.seen)
    run_matrix(models, recipe, output, seeds=[7], sizes=(1, 4), say=quiet)
    assert len(fake.seen) == asked


def test_a_judge_that_fails_goes_on(servers: Loop, tmp_path: Path) -> None:
    """What it has judged is stored; nothing is scored as if the server had said nothing."""
    broken, judged = [True], list[str]()

    def fault(body: Body) -> int | None:
        if len(body["messages"]) < 3:
            return None
        judged.append(body["messages"][0]["content"])
        return 403 if broken and len(judged) > 9 else None

    def write(body: Body, i: int) -> str:
        return "<score>0.5</score>" if len(body["messages"]) == 3 else tagged(f"{i}", f"0.{i}")

    models = Models({"far": f"{servers.upstream(FakeUpstream(write=write, fault=fault))}#m"})
    more = "task.name=digits-sum evaluation.problems=12 evaluation.samples=1 policy.server.tries=1"
    recipe = load_recipe("adpo-digits", more.split())
    with pytest.raises(ServerError, match=r"the judge failed on answer 0 of problem digits-sum/test/0/\d+"):
        run_matrix(models, recipe, tmp_path, sizes=(1,), say=quiet)
    kept = read_journal(tmp_path / "far-by-far.jsonl", JudgedProblem)[1]
    assert len(kept) == 8 and all(row.scores != [None] for row in kept.values())
    broken.clear()
    judged.clear()
    run_matrix(models, recipe, tmp_path, sizes=(1,), say=quiet)
    assert len(judged) <= 4 * 3
    assert len(read_journal(tmp_path / "far-by-far.jsonl", JudgedProblem)[1]) == 12


def test_judged_samples_keep_their_places(tiny_folder: Path, tmp_path: Path) -> None:
    """Shuffled samples of two problems, one unreadable: every score is that of its own answer.

    Written scores are tenths, which differ.
    """
    task = make_task("digits-pick")
    problems = [task.problem("test", 0, i) for i in range(2)]
    text = "<think>.</think><answer>{0} 2 3</answer><score>0.{0}</score><|im_end|>"
    rows = [sample(p.id, k, False, 0.5, text=text.format(k)) for p in problems for k in range(3)]
    rows[4].answer = None
    judge, order = PolicyJudge(Policy.load(str(tiny_folder), device="cpu")), [5, 0, 3, 1, 4, 2]

    def stored(rows: list[StoredSample], batch: int) -> dict[str, list[float | None]]:
        return stored_scores(tmp_path / f"{batch}.jsonl", {}, lambda: judge, task, problems, rows, batch)

    both, shuffled = stored(rows, 2), stored([rows[i] for i in order], 1)[""]
    straight = both[""]
    assert straight[4] is None and None not in [*straight[:4], straight[5]]
    assert len(set(straight)) > 3
    for place, i in enumerate(order):
        assert shuffled[place] == (None if straight[i] is None else pytest.approx(straight[i], abs=1e-4))
    drawn = [value for value in both[WRITTEN] if value is not None]
    assert len(drawn) == 5 and all(10 * value == round(10 * value) for value in drawn) and len({*drawn}) > 1
    for row, score in zip(rows, straight, strict=True):
        row.scores["judge"] = score
    cells = matrix({"g": rows}, ["judge"], task, sizes=(1, 2))
    assert {pair for of in cells.values() for pair in of} == {
        ("g", "none"), ("g", "majority"), ("g", "judge")
    }  # fmt: skip


@yaml_cases
def test_bad_requests(words: list[str], complaint: str) -> None:
    assert complaint in command(*words, code=2, of=app).output
