"""The sample store: what is written is read, and what cannot be a sample is refused."""

import json
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samples import sample, write_samples
from selfverify.core.errors import DataError
from selfverify.evaluation.samples import read_samples

SETTINGS = {"model": "tiny", "sampling": {"temperature": 1.0, "stop": ["</score>"]}}


def problem(name, **changes):
    return [sample(name, k, True, 0.5, **changes) for k in range(2)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(),
    answer=st.one_of(st.none(), st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False))),
    score=st.one_of(st.none(), st.floats(0, 1)),
)
def test_what_is_written_is_read(tmp_path, text, answer, score):
    path = tmp_path / "s.jsonl"
    path.unlink(missing_ok=True)
    written = problem("ü\n\u2028", text=text, answer=answer, scores={"soft": score})
    write_samples(path, SETTINGS, written)
    assert read_samples(path) == (SETTINGS, written)


def test_a_line_is_a_problem(tmp_path):
    write_samples(tmp_path / "s.jsonl", SETTINGS, [*problem("a"), *problem("b")])
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert lines[0] == {"rows": "StoredProblem", "format": 1, "settings": SETTINGS}
    assert [line["index"] for line in lines[1:]] == [0, 1]
    assert [(s["problem"], s["sample"]) for s in lines[2]["samples"]] == [("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    "change",
    [{"correct": "yes"}, {"rewards": {"answer": "1"}}, {"scores": [1]}, {"logprob": float("nan")}, {"a": 1}],
)
def test_a_line_with_a_wrong_field_is_named(tmp_path, change):
    path = tmp_path / "s.jsonl"
    write_samples(path, SETTINGS, [*problem("a"), *problem("b")])
    lines = path.read_text().splitlines()
    bad = [asdict(s) | change for s in problem("a")]
    lines[1] = json.dumps({"index": 0, "digest": "", "samples": bad})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"s\.jsonl, line 2: samples\.0\."):
        read_samples(path)
