"""A run whose judge hangs, whose images vanish and which is killed ends like one that nothing happened to."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from killed_runs import finish, same_figures, same_weights, start
from selfverify.core.events import read_events, story
from selfverify.reports.run_data import load_run
from trainer.fault_run import FILES, GONE, UNJUDGED, UNUSABLE, run, write_images

SCRIPT = Path(__file__).with_name("fault_run.py")


def vanish(images: Path, faults: Path, until: threading.Event, rng: random.Random) -> None:
    """Take one image file after the other away for a moment, shorter than the reader's patience of 1.5 s.

    The first is gone before the run reads it for the first time.
    """
    number = 0
    while True:
        file = images / f"{number}.png"
        hidden = file.with_suffix(".away")
        os.replace(file, hidden)
        while number == 0 and not (faults / "reading").exists() and not until.is_set():
            time.sleep(0.01)
        time.sleep(rng.uniform(0.1, 0.4))
        os.replace(hidden, file)
        if until.wait(rng.uniform(0.0, 0.3)):
            return
        number = rng.randrange(1, FILES)


def disturbed(steps: int, kills: int, output: Path, images: Path, faults: Path) -> int:
    """Train with all faults at once and ``kills`` SIGKILLs at random; how many of them hit a live run."""
    rng, hit, log = random.Random(kills), 0, output.with_suffix(".log")
    calm = threading.Event()
    mover = threading.Thread(target=vanish, args=(images, faults, calm, random.Random(1)))
    mover.start()
    try:
        for kill in range(kills):
            process = start(SCRIPT, steps, output, images, faults, log=log)
            assert process.stdout is not None
            # In the k-th part of the run, somewhere inside a step.
            last = rng.randint(steps * kill // kills + 1, steps * (kill + 1) // kills - 1)
            for line in process.stdout:
                if line.startswith("step") and int(line.split()[1]) >= last:
                    break
            time.sleep(rng.uniform(0.0, 0.3))
            process.kill()
            process.communicate()
            hit += process.returncode < 0
        finish(start(SCRIPT, steps, output, images, faults, log=log), 1200, log)
    finally:
        calm.set()
        mover.join()
    return hit


def check(steps: int, kills: int, folder: Path) -> list[str]:
    images, faults = folder / "images", folder / "faults"
    whole, broken = folder / "whole", folder / "broken"
    for made in (images, faults):
        made.mkdir()
    write_images(images)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run(steps, whole, images, None)
    torch.set_num_threads(threads)
    hit = disturbed(steps, kills, broken, images, faults)
    assert hit >= kills - 1, "the run ended before it could be killed"

    assert same_weights(whole, broken) and same_figures(whole, broken)
    last = load_run(broken).steps[-1]
    assert (last["step"], last["problems/skipped"]) == (steps, 2)

    calm, events = (Counter(e["event"] for e in read_events(f / "events.jsonl")) for f in (whole, broken))
    calm.pop("machine_busy", None)  # a fact about the machine
    assert set(calm) == {"started", "finished", "problem_skipped", "unjudged"}
    assert events["resumed"] + events["started"] == kills + 1 and events["finished"] == 1
    assert events["worker_restarted"] == events["call_retried"] >= 1
    assert events["image_retried"] >= 1
    for folder in (whole, broken):
        told = "\n".join(story(read_events(folder / "events.jsonl")))
        assert "2 problems skipped" in told and "gone.png" in told
        assert f"filed-sum#{GONE}: " in told and f"filed-sum/{UNUSABLE}: " in told
    unjudged = [e for e in read_events(whole / "events.jsonl") if e["event"] == "unjudged"]
    assert {e["problem"] for e in unjudged} == {f"filed-sum/{UNJUDGED}"}

    workers = [int(file.name.removeprefix("pid-")) for file in faults.glob("pid-*")]
    assert len(workers) > kills
    deadline = time.monotonic() + 30  # a hanging one outlives its killed parent by some seconds
    while running := [pid for pid in workers if is_worker(pid)]:
        assert time.monotonic() < deadline, f"workers are left: {running}"
        time.sleep(0.1)
    return story(read_events(broken / "events.jsonl"))


def is_worker(pid: int) -> bool:
    try:
        return b"selfverify.core.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_steps_and_ten_kills(tmp_path: Path) -> None:
    """All at once; in the ordinary tests each fault is looked at by itself."""
    print("\n".join(check(200, 10, tmp_path)))
