"""The pool answers whatever its function does, and no process outlives its parent."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import worker_functions as functions
from selfverify.core.errors import ConfigError
from selfverify.core.process_pool import CallOutcome, Worker, WorkerPool

TESTS = Path(__file__).parents[1]
LIMIT_S = 0.3


def pids(pool: WorkerPool) -> set[int]:
    return {worker.process.pid for worker in pool._all}


def alive(pid: int) -> bool:
    """Runs, or is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_calls_go_to_a_process_that_stays() -> None:
    with WorkerPool(functions.pid, timeout_s=30) as pool:
        first, second = pool.call(1).value, pool.call(2).value
        assert first == second != os.getpid()
        assert pool.restarts == 0
    assert not alive(first)


def test_what_the_function_prints_does_not_get_between_the_replies() -> None:
    with WorkerPool(functions.add, timeout_s=30) as pool:
        assert pool.call(2, 3) == CallOutcome("done", 5)


def test_a_worker_imports_nothing_heavy() -> None:
    with WorkerPool(functions.modules, timeout_s=30) as pool:
        assert not {"torch", "transformers", "numpy", "PIL"} & set(pool.call().value)


@pytest.mark.parametrize("kind", ["sleep", "spin", "hold the lock", "leave a child"])
def test_a_hanging_call_is_killed_and_made_again(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WorkerPool(functions.first, timeout_s=1) as pool, caplog.at_level(logging.WARNING):
        assert pool.call(str(tmp_path), kind, "a") == CallOutcome("done", "a")
        assert (pool.timeouts, pool.restarts) == (1, 1)
    assert [r.__dict__["event"] for r in caplog.records] == ["worker_restarted", "call_retried"]


@pytest.mark.parametrize(("kind", "status"), [("sleep", "timed_out"), ("crash", "died"), ("silent", "died")])
def test_a_call_that_always_fails_has_an_outcome(kind: str, status: str) -> None:
    with WorkerPool(functions.misbehave, timeout_s=LIMIT_S) as pool:
        outcome = pool.call(kind)
        assert outcome.status == status and outcome.reason and not outcome.done
        assert pool.restarts == 2
        # It is remembered: the same answer of another sample must not cost two time limits again.
        assert pool.call(kind) is outcome and pool.restarts == 2
        assert pool.counters()["workers/cached"] == 1
        assert not pids(pool)


def test_an_exception_is_an_outcome_and_not_tried_again() -> None:
    with WorkerPool(functions.raises, timeout_s=30) as pool:
        assert pool.call("this") == CallOutcome("raised", reason="ValueError: not this")
        assert pool.restarts == 0


def test_results_and_arguments_have_limits() -> None:
    with WorkerPool(functions.large, timeout_s=30, max_input=50, max_output=1000) as pool:
        assert pool.call(900).value == "x" * 900
        assert pool.call(5_000_000).status == "died"
        assert pool.call("x" * 100).status == "refused"
        assert pool.call({1, 2}).status == "refused"
        assert pool.call(900).done


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_memory_has_a_limit() -> None:
    with WorkerPool(functions.greedy, timeout_s=30, memory_mb=1024) as pool:
        assert pool.call(2048) == CallOutcome("raised", reason="MemoryError: ")
        assert pool.call(16).value == 16 << 20


def test_outcomes_are_remembered_up_to_a_limit() -> None:
    with WorkerPool(functions.add, timeout_s=30, cache=2) as pool:
        for a in (1, 2, 1, 3, 2):  # 2 is the least recently used one when 3 comes
            assert pool.call(a, 0).value == a
        assert pool.counters() == {"workers/timeouts": 0, "workers/restarts": 0, "workers/cached": 1}


def test_map_keeps_the_order_and_uses_all_workers(tmp_path: Path) -> None:
    with WorkerPool(functions.first, timeout_s=2, workers=3) as pool:
        kinds = ["sleep", "", "crash", "", "sleep", ""]
        calls = [(str(tmp_path), kind, str(i)) for i, kind in enumerate(kinds)]
        assert [outcome.value for outcome in pool.map(calls)] == list("012345")
        assert pool.restarts == 3
        assert 1 <= len(pids(pool)) <= 3


def test_threads_share_a_pool() -> None:
    with WorkerPool(functions.add, timeout_s=30, workers=2) as pool:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda i: pool.call(i, 1).value, range(100))) == list(range(1, 101))
        assert len(pids(pool)) <= 2


def test_a_worker_killed_from_outside_costs_no_try() -> None:
    with WorkerPool(functions.pid, timeout_s=30, retries=0) as pool:
        first = pool.call(1).value
        os.kill(first, signal.SIGKILL)
        [worker] = pool._all
        worker.process.wait()
        second = pool.call(2)
        assert second.done and second.value != first


def test_a_fork_has_workers_of_its_own() -> None:
    with WorkerPool(functions.pid, timeout_s=30, cache=0) as pool:
        mine = pool.call(1).value
        child = os.fork()
        if child == 0:
            theirs = pool.call(1).value
            pool.close()
            os._exit(0 if theirs != mine and not alive(theirs) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.call(1).value == mine


PROGRAM = """
import sys, threading
import worker_functions as functions
from selfverify.core.process_pool import WorkerPool
idle, busy = WorkerPool(functions.pid, timeout_s=2), WorkerPool(functions.misbehave, timeout_s=2)
print(idle.call(1).value, flush=True)
threading.Thread(target=busy.call, args=(sys.argv[1],), daemon=True).start()
while not busy._all:
    pass
print([w.process.pid for w in busy._all][0], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("kind", "end"), [("sleep", "exit"), ("hold the lock", "kill")])
def test_workers_end_with_their_parent(kind: str, end: str) -> None:
    """Even one whose function holds the interpreter's lock while the parent is killed with SIGKILL."""
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
    )
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    if end == "kill":
        parent.kill()
    parent.communicate()
    assert all(gone(pid) for pid in workers)


def test_functions_that_no_worker_can_import_are_refused() -> None:
    def local() -> None: ...

    for function in (local, lambda: None):
        with pytest.raises(ConfigError, match="top-level function"):
            WorkerPool(function, timeout_s=1)
    with pytest.raises(ConfigError, match="retries=-1"):
        WorkerPool(functions.add, timeout_s=1, retries=-1)


def test_a_module_that_fails_only_in_a_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != TESTS])
    with WorkerPool(functions.add, timeout_s=1) as pool, pytest.raises(ConfigError, match="worker_functions"):
        pool.call(1, 2)


def test_one_worker_answers_a_request_longer_than_a_pipe() -> None:
    worker = Worker("worker_functions", "raises", 30, 10_000, 4096)
    try:
        worker.begin()
        assert worker.ask(b'["' + b"x" * 1_000_000 + b'"]\n').status == "raised"
    finally:
        worker.kill()


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], stdin=subprocess.PIPE)
child.wait()
"""
CHILD = """
import os, signal, sys, time
from selfverify.core.worker import end_with_parent
def stop():
    print("the parent is gone", flush=True)
    if sys.argv[1] == "well":
        os.kill(os.getpid(), signal.SIGINT)
end_with_parent(stop, 60.0 if sys.argv[1] == "well" else 0.1)
try:
    print("begun", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal that comes just before a long sleep would not end it
except KeyboardInterrupt:
    print("ended well", flush=True)
"""


@pytest.mark.parametrize(("how", "last"), [("well", ["ended well"]), ("by force", [])])
def test_a_process_ends_when_its_parent_is_killed(how: str, last: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, how]
    # Its output is the child's, and ends with it.
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "begun\n"
    os.kill(parent.pid, signal.SIGKILL)
    told = parent.communicate(timeout=120)[0].splitlines()
    assert told == ["the parent is gone", *last]
