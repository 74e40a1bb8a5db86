"""A trainer of agents is killed: it ends with the same bits, and asks its judge nothing twice."""

from __future__ import annotations

import hashlib
import json
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.judges.test_opinions import answer
from tests.agents.phone_run import GROUPS, SIZE, STEPS

import killed_runs
from killed_runs import finish, same_figures, same_weights
from selfverify.core.events import read_events
from selfverify_phone.fresh_model import text_tokenizer, write_tiny_text
from selfverify_phone.small_policy import corpus
from serving_servers import FakeUpstream, Loop

SCRIPT = Path(__file__).with_name("phone_run.py")
VERDICTS = ("SUCCESS", "SUCCESS", "FAILURE")


class CountingJudge:
    """A judge whose opinion hangs on all it reads; it counts, and may be told to keep silent.

    A request and its vote's number have a seed of their own, so that no two votes are asked for alike.
    """

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.silent = threading.Event()
        self.after = 10**9
        """So many more answers, and then no more."""
        self.fake = FakeUpstream(write=self.write, fault=self.fault)
        self.loop = Loop()
        self.url = self.loop.upstream(self.fake)

    def fault(self, body: dict[str, Any]) -> str | None:
        """Once it keeps silent, nobody gets an answer."""
        if self.after <= 0:
            self.silent.set()
            return "slow"
        self.after -= 1
        return None

    def write(self, body: dict[str, Any], number: int) -> str:
        """An answer of the form that is asked for."""
        key = hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=8).hexdigest()
        self.answered[key] += 1
        rounds = re.findall(r"^## Round (\d+)$", body["messages"][1]["content"], re.MULTILINE)
        return answer(f"Round {rounds[-1]} shows it.", verdict=VERDICTS[int(key, 16) % 3])


@pytest.fixture
def judge() -> Iterator[CountingJudge]:
    made = CountingJudge()
    yield made
    made.loop.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_tiny_text(folder, text_tokenizer(corpus()), seed=1, hidden=32, layers=1, context=4096)


def start(model: Path, output: Path, url: str, resume: bool) -> subprocess.Popen[str]:
    """The program on its way."""
    return killed_runs.start(SCRIPT, model, output, url, *(["resume"] if resume else []))


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the run has ended before it could be killed"


def same(one: Path, other: Path) -> bool:
    """Whether two runs have the same weights and the same figures."""
    return same_weights(one, other) and same_figures(one, other)


@pytest.mark.slow
def test_killed_while_judges_vote(model: Path, tmp_path: Path, judge: CountingJudge) -> None:
    """Each time the judge has fallen silent in the middle of a step's votes; four times in a run."""
    finish(start(model, tmp_path / "whole", judge.url, resume=False))
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    unbroken = Counter(judge.answered)
    judge.answered.clear()
    assert len(lines) == STEPS and any(line["groups/kept"] for line in lines)
    assert {line["agent/judged-SR"] for line in lines} != {1.0} and set(unbroken.values()) == {1}
    assert 3 * STEPS <= len(unbroken) <= 3 * STEPS * GROUPS * SIZE
    broken, asked = tmp_path / "broken", len(unbroken)
    for number in range(4):
        judge.after = asked // 5 if number else asked // 7
        process = start(model, broken, judge.url, resume=number > 0)
        assert judge.silent.wait(120), process.communicate(timeout=10)[1][-3000:]
        time.sleep(0.5)  # what was answered before has arrived
        kill(process)
        judge.silent.clear()
    judge.after = 10**9
    finish(start(model, broken, judge.url, resume=True))
    assert judge.answered == unbroken, "the judge was asked something twice, or something else"
    assert same(tmp_path / "whole", broken)
    events = [event["event"] for event in read_events(broken / "events.jsonl")]
    assert events.count("resumed") >= 2 and events.count("finished") == 1


@pytest.mark.slow
def test_killed_at_random_moments(model: Path, tmp_path: Path, judge: CountingJudge) -> None:
    """Inside a rollout, an update, or a checkpoint; of what was answered only the last may be asked again."""
    finish(start(model, tmp_path / "whole", judge.url, resume=False))
    unbroken = Counter(judge.answered)
    judge.answered.clear()
    rng = random.Random(0)
    broken = tmp_path / "broken"
    for number in range(6):
        process = start(model, broken, judge.url, resume=number > 0)
        assert process.stdout is not None
        if number % 2:  # some die while they start, or before the first step
            assert process.stdout.readline().startswith("step")
        time.sleep(rng.uniform(0.0, 0.4 if number % 2 else 6.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(start(model, broken, judge.url, resume=True))
    assert judge.answered.keys() == unbroken.keys() and same(tmp_path / "whole", broken)
    # A kill can lose the answers that were on their way, those of one case or two.
    assert judge.answered.total() <= unbroken.total() + 6 * 2 * 3
