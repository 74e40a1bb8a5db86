"""Several processes train what one trains: DDP and FSDP2, on the CPU with gloo.

One of them may have a bad gradient, a reply that hangs, or nothing to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from killed_runs import rows
from selfverify.core import ranks
from selfverify.core.events import read_events
from selfverify.core.jsonl_store import read_journal
from selfverify.rollouts.recording import RecordedGroup
from served import free_port

PROGRAM = Path(__file__).with_name("several.py")
FOLDERS = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[1])]
WRAPPED = {"ddp": "DistributedDataParallel", "fsdp": "FSDPModuleRoot"}

Weights = dict[str, torch.Tensor]
Run = tuple[Path, Weights]
"""A run's folder, and the weights after it."""

TOWER, SLICED, SEPARATE = ("vision=1", "text=1"), ("tokens=150",), ("channels=separate",)
TALK = ("talk=1", "groups=2", "updates=1")
BAD = ("bad=1", "steps=3")
TOGETHER = {
    "ddp": [(), TOWER, SLICED, BAD, TALK],
    "fsdp": [(), SEPARATE, BAD + SEPARATE],
    "alone": [(), TOWER, SEPARATE, (*TALK, "replay=ddp")],
}
"""Settings of runs that one launch makes one after another; a reply that hangs comes last."""


def launch(way: str, *words: object, processes: int = 2) -> None:
    """Run the program to its end, by torchrun if there are several processes."""
    command = [sys.executable]
    if way != "alone":
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    path = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, str(PROGRAM), way, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def saved(output: Path, way: str, processes: int = 2) -> Weights:
    """The weights that a run has left, after a look at how it was run."""
    facts = json.loads((output / "way.json").read_text())
    if way != "alone":
        assert facts == {"count": processes, "root": WRAPPED[way]}
    [file] = (output / "model").glob("*.safetensors")
    return load_file(file)


def trained(output: Path, way: str, *settings: str) -> Weights:
    """The weights after a run that is launched by itself, and may go on with another."""
    launch(way, output, *settings)
    return saved(output, way)


def assert_same(ours: Weights, theirs: Weights, limit: float = 1e-10) -> None:
    assert ours.keys() == theirs.keys()
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    assert worst < limit


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """``ran(way, *settings)``: a run that nobody changes, made once; ``replay`` names the way of another."""
    made: dict[tuple[str, tuple[str, ...], int], Path] = {}

    def word(setting: str) -> str:
        name, _, way = setting.partition("=")
        return f"replay={run(way, *TALK)[0]}" if name == "replay" else setting

    def run(way: str, *settings: str, processes: int = 2) -> Run:
        if (way, settings, processes) not in made:
            together = TOGETHER[way] if processes == 2 and settings in TOGETHER[way] else [settings]
            folders = {(way, each, processes): tmp_path_factory.mktemp(way) for each in together}
            words = [["+", folder, *map(word, key[1])] for key, folder in folders.items()]
            launch(way, *chain(*words), processes=processes)
            made.update(folders)
        folder = made[way, settings, processes]
        return folder, saved(folder, way, processes)

    return run


def assert_same_metrics(ours: Path, theirs: Path) -> list[dict[str, float]]:
    """Returns those of the first folder."""
    for mine, other in zip(rows(ours), rows(theirs), strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-6)
    return rows(ours)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_equal_one(way: str, ran: Callable[..., Run]) -> None:
    (ours, weights), (theirs, others) = ran(way), ran("alone")
    assert_same(weights, others)
    assert len(assert_same_metrics(ours, theirs)) == 2


@pytest.mark.parametrize("way", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_slices_of_rows_keep_processes_in_step(way: str, ran: Callable[..., Run]) -> None:
    """Most rows are passes of their own, so that the processes have unlike numbers of them."""
    assert_same(ran(way, *SLICED)[1], ran("alone")[1])


@pytest.mark.slow
def test_a_run_goes_on_under_another_wrapper(ran: Callable[..., Run], tmp_path: Path) -> None:
    trained(tmp_path, "fsdp", "steps=1")
    trained(tmp_path, "ddp", "steps=2", "resume=1")
    assert_same(trained(tmp_path, "alone", "steps=3", "resume=1"), ran("alone", "steps=3")[1])


@pytest.mark.parametrize(
    ("way", "processes", "settings"),
    [
        ("ddp", 2, TOWER),
        pytest.param("fsdp", 2, TOWER, marks=pytest.mark.slow),
        # Three processes on two cores take their time.
        pytest.param("ddp", 3, ("repeat=1", "groups=6"), marks=pytest.mark.slow),
    ],
    ids=["tower under DDP", "tower under FSDP", "a problem twice in a step"],
)
def test_uneven_processes_equal_one(
    way: str, processes: int, settings: tuple[str, ...], ran: Callable[..., Run]
) -> None:
    assert_same(ran(way, *settings, processes=processes)[1], ran("alone", *settings)[1])


@pytest.mark.parametrize("way", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_channels_apart_equal_one_process(way: str, ran: Callable[..., Run]) -> None:
    """Each channel's gradient is summed over the processes."""
    (ours, weights), (theirs, others) = ran(way, *SEPARATE), ran("alone", *SEPARATE)
    assert_same(weights, others)
    assert all(line["grad_norm/score"] > 0 for line in assert_same_metrics(ours, theirs))


SUMS = """
import torch
from selfverify.core import ranks
from selfverify.policy.policy import Policy
from selfverify.trainer.parallel import Parallel, make_accelerator

ranks.start(cpu=True)
torch.manual_seed(ranks.index())
policy = Policy.load("builtin:digits", device="cpu", dtype="bfloat16")
trained = [p for p in policy.model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trained, lr=0.0)
parallel = Parallel(make_accelerator(policy), policy, None, optimizer, 1e9)
exact = [torch.zeros(p.shape) for p in trained]
for parameter, whole in zip(trained, exact):
    parameter.register_hook(lambda grad, whole=whole: [whole.add_(grad)] and None)
for number in range(20):
    with parallel.one_pass(last=number == 19):
        ids = torch.randint(5, 60, (1, 3 + ranks.index()))
        logits = policy.inside(lambda: policy.model(input_ids=ids, use_cache=False).logits)
        parallel.backward((logits.float() * torch.randn(logits.shape)).sum())
everyone = ranks.gather(exact)
wanted = torch.nn.utils.get_total_norm([sum(each) / ranks.count() for each in zip(*everyone)])
assert {p.grad.dtype for p in trained if p.grad is not None} == {torch.float32}
found = parallel.step()
assert abs(found / float(wanted) - 1) < 1e-6, (found, wanted)
ranks.stop()
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_gradients_of_bfloat16_weights_are_summed_in_float32(processes: int) -> None:
    """Over twenty passes and two processes; sums of bfloat16 numbers are off by 1e-3."""
    path = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    count = {"PYTHONPATH": path, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    shared = {**os.environ, **count, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SUMS], env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(processes)
    ]  # fmt: skip
    for process in running:
        said = process.communicate(timeout=240)[1]
        assert process.returncode == 0, said[-2000:]


@pytest.mark.parametrize("seed", range(20))
def test_balancing_never_makes_the_longest_queue_longer(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    costs = torch.randint(1, 1000, (24,), generator=generator).tolist()
    owners = [i % 4 for i in range(24)]

    def longest(shares: list[int]) -> int:
        return max(sum(c for c, s in zip(costs, shares, strict=True) if s == p) for p in range(4))

    shared = ranks.balance(costs, owners, 4)
    assert longest(shared) <= longest(owners)
    # Greedy moves end within the smallest group of the mean.
    assert longest(shared) <= sum(costs) / 4 + max(costs) / 2


@pytest.mark.parametrize(
    ("way", "settings", "told"),
    [("ddp", BAD, ["all"] * 2), ("fsdp", BAD + SEPARATE, ["answer", "score"] * 2)],
)
def test_one_bad_process_keeps_all_from_an_update(
    way: str, settings: tuple[str, ...], told: list[str], ran: Callable[..., Run]
) -> None:
    """In the second of three steps. All make none together, and the others go on to learn."""
    folder, last = ran(way, *settings)
    first, second, third = (
        load_file(folder / f"checkpoints/checkpoint-{step:06d}/model/model.safetensors") for step in (1, 2, 3)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(second[name], third[name]) for name in first)
    assert all(bool(tensor.isfinite().all()) for tensor in last.values())
    events = [e for e in read_events(folder / "events.jsonl") if e["event"] == "update_skipped"]
    assert [(e["step"], e["channel"], e.get("process", 0)) for e in events] == [(1, name, 0) for name in told]
    assert [row.get("updates/skipped", 0) for row in rows(folder)] == [0, len(told), 0]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_masters_go_from_wrapper_to_wrapper(way: str, tmp_path: Path) -> None:
    """A checkpoint holds whole masters, which are the saved weights before rounding; one process goes on."""
    saved = trained(tmp_path, way, "low=1", "steps=1")
    state = json.loads((tmp_path / "checkpoints/checkpoint-000001/state.json").read_text())
    tensors = load_file(tmp_path / "checkpoints/checkpoint-000001/optimizer.safetensors")
    masters = {n: t for n, t in tensors.items() if n.startswith("optimizer.") and n.endswith(".master")}
    assert len(masters) == len(state["names"][0])
    for number, name in enumerate(state["names"][0]):
        master = masters[f"optimizer.state.{number}.master"]
        assert master.dtype == torch.float32
        # The saved file has the family's older names.
        assert torch.equal(master.bfloat16(), saved[name.replace("language_model.", "")])
        assert tensors[f"optimizer.state.{number}.exp_avg"].dtype == torch.float32
    assert any(bool((t.bfloat16().float() != t).any()) for t in masters.values())
    trained(tmp_path, "alone", "low=1", "resume=1")


@pytest.mark.parametrize("way", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_ragged_conversations_and_one_that_hangs(way: str, ran: Callable[..., Run]) -> None:
    """Processes whose conversations end at different rounds stay in step, and learn what one learns."""
    (ours, weights), (theirs, others) = ran(way, *TALK), ran("alone", *TALK, f"replay={way}")
    assert_same(weights, others)
    # What two processes have logged is what one learns from.
    assert_same(weights, load_file(theirs / "again" / "model" / "model.safetensors"))
    for folder in (ours, theirs, theirs / "again"):
        first, second = rows(folder)
        assert (first["trajectories/invalid"], second["trajectories/invalid"]) == (1, 0)
        assert first["conversation/error"] == pytest.approx(1 / 8, abs=1e-6)
        assert first["conversation/turns"] > 1
    log = ours / "rollouts"
    files = [*log.glob("step-00000[12].process-[01]-of-2.jsonl")]
    assert len(files) == 4 and [*log.glob("*/*.png")]
    logged = [row for file in files for row in read_journal(file, RecordedGroup)[1].values()]
    first = [t.segments[0] for row in logged for t in row.trajectories]
    # Some are shown something first, and some are over before the policy speaks.
    shown = [s for s in first if s.author == "environment" and s.tokens]
    assert any(s.images for s in shown) and len(shown) < len(first)
    assert any(s.finish == "stop" and not s.tokens for s in first)
    events = read_events(ours / "events.jsonl")
    [failed] = [event for event in events if event["event"] == "episode_failed"]
    assert failed["process"] == 1 and "took longer than 2.0 s" in failed["reason"]


@pytest.mark.slow
def test_idle_processes_and_adapters(ran: Callable[..., Run]) -> None:
    """One group for two processes: the second has nothing of its own in any pass."""
    (_, weights), (_, others) = (ran(way, "groups=1", "updates=1", "lora=1") for way in ("fsdp", "ddp"))
    assert all("lora_" in name for name in weights) and weights.keys() == others.keys()
