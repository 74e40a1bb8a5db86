"""The sample store: round trips, resuming after a kill, refusing what cannot be right."""

import json
import logging
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfverify.errors import ConfigError, DataError
from selfverify.evaluation.store import Sample, SampleStore, read_samples

SETTINGS = {"model": "tiny", "sampling": {"temperature": 1.0, "stop": ["</score>"]}}


def make(problem="p0", sample=0, **changes):
    fields = {
        "text": "7 + 2 = 9", "answer": "9", "key": "9", "correct": True, "tokens": 12, "logprob": -0.1,
        "rewards": {"answer": 1.0, "format": 1.0}, "scores": {"sampled": 0.8, "greedy": 0.9, "soft": None},
        "finish": "stop", "seed": 3,
    }  # fmt: skip
    return Sample(problem=problem, sample=sample, **(fields | changes))


def problem(name, n=2, **changes):
    return [make(name, k, **changes) for k in range(n)]


def fill(path, *names):
    with SampleStore(path, SETTINGS, 2) as store:
        for name in names:
            store.append(problem(name))
    return path


def test_header_and_lines_are_plain_json(tmp_path):
    lines = [json.loads(line) for line in fill(tmp_path / "deep" / "s.jsonl", "a").read_text().splitlines()]
    assert lines[0] == {"format": 1, "samples_per_problem": 2, "settings": SETTINGS}
    assert lines[1]["problem"] == "a"
    assert lines[1]["scores"] == {"sampled": 0.8, "greedy": 0.9, "soft": None}


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
    with SampleStore(path, SETTINGS, 2) as store:
        store.append(written)
    assert read_samples(path) == (SETTINGS, written)


def test_reopening_resumes(tmp_path):
    path = fill(tmp_path / "s.jsonl", "a", "b")
    with SampleStore(path, SETTINGS, 2) as store:
        assert store.finished.keys() == {"a", "b"}
        store.append(problem("c"))
    assert [sample.problem for sample in read_samples(path)[1]] == ["a", "a", "b", "b", "c", "c"]


def test_a_kill_at_any_byte_loses_only_the_unfinished_problem(tmp_path, caplog):
    """Cut the file at every length: reopening and writing what is missing gives the unbroken file."""
    whole = fill(tmp_path / "whole.jsonl", "a", "b").read_bytes()
    path = tmp_path / "cut.jsonl"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with SampleStore(path, SETTINGS, 2) as store:
            for name in ("a", "b"):
                if name not in store.finished:
                    store.append(problem(name))
        assert path.read_bytes() == whole, length
    assert "cut off" in caplog.text


def test_reading_a_torn_file_warns_and_leaves_it_alone(tmp_path, caplog):
    path = fill(tmp_path / "s.jsonl", "a")
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    with caplog.at_level(logging.WARNING):
        _, samples = read_samples(path)
    assert len(samples) == 1
    assert path.read_bytes() == torn
    assert "last line was cut off" in caplog.text


def test_other_settings_are_named(tmp_path):
    path = fill(tmp_path / "s.jsonl", "a")
    changed = {"model": "tiny", "sampling": {"temperature": 0.2, "stop": ["</score>"]}}
    with pytest.raises(ConfigError, match=r"sampling\.temperature was 1\.0 and is now 0\.2") as error:
        SampleStore(path, changed, 2)
    assert "model" not in str(error.value)
    assert "another path" in str(error.value)
    with pytest.raises(ConfigError, match="samples_per_problem was 2 and is now 8"):
        SampleStore(path, SETTINGS, 8)


def test_tuples_in_settings_equal_the_lists_they_are_stored_as(tmp_path):
    for _ in range(2):
        SampleStore(tmp_path / "s.jsonl", {"betas": (0.9, 0.99)}, 2).close()


@pytest.mark.parametrize(
    "line",
    [
        b"{not json", b"[1]", b'{"problem": "a"}', b"\xff\xfe", b'{"a": NaN}', b"",
        json.dumps(asdict(make()) | {"correct": "yes"}).encode(),
    ],
)  # fmt: skip
def test_a_corrupt_line_is_named(tmp_path, line):
    path = fill(tmp_path / "s.jsonl", "a", "b")
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))
    for open_it in (read_samples, lambda p: SampleStore(p, SETTINGS, 2)):
        with pytest.raises(DataError, match=r"s\.jsonl, line 3: "):
            open_it(path)


def test_a_missing_line_in_the_middle_is_an_error(tmp_path):
    path = fill(tmp_path / "s.jsonl", "a", "b")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:2] + lines[3:]))
    with pytest.raises(DataError, match=r"line 3: problem 'a' has 1 samples here instead of 2"):
        SampleStore(path, SETTINGS, 2)


def test_somebody_elses_file_is_not_overwritten(tmp_path):
    for content in (b"my thesis", b'{"step": 1}\n'):
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        with pytest.raises(DataError, match="line 1: not the header"):
            SampleStore(path, SETTINGS, 2)
        assert path.read_bytes() == content


def test_appending_refuses_what_does_not_belong(tmp_path):
    path = fill(tmp_path / "s.jsonl", "a")
    before = path.read_bytes()
    with SampleStore(path, SETTINGS, 2) as store:
        for samples, message in [
            (problem("a"), "already in the file"),
            ([make("b", 0), make("c", 0)], "samples of one problem expected"),
            ([make("b", 0), make("b", 0)], "2 different samples"),
            (problem("b", n=1), "2 different samples"),
            (problem("b", logprob=float("nan")), "cannot be stored as JSON"),
            (problem("b", answer={1, 2}), "cannot be stored as JSON"),
        ]:
            with pytest.raises(DataError, match=message):
                store.append(samples)
    assert path.read_bytes() == before
