"""Compare the commit before the redesign with the working tree: `make goldens GOLDENS="g1 g6"`, or all.

Both trees run each golden on this machine, side by side, each on one thread. What they store is compared
value by value, and the first difference of each golden is printed. The exit status is 1 if anything differs.

    PYTHONPATH=tests python -m goldens [g1 g6 ...] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from goldens.compare import first_difference
from goldens.drive import golden_modules
from goldens.tree import HERE, Side, read_yaml

ROOT = HERE.parents[1]
DRIVER = HERE / "drive.py"


def environment(root: Path, scratch: Path) -> dict[str, str]:
    """Return the variables of a process that runs a golden: one thread, nothing from the network."""
    more = sorted(path.parent for path in root.glob("environments/*/pyproject.toml"))
    folders = [root / "src", *more, root / "tests", root]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": "100",
        "TMPDIR": str(scratch),
    }


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out in a work tree of its own, until the block is over."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--force", "--detach", str(folder), commit], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=False, capture_output=True)


def start(golden: str, side: Side, root: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a golden on a tree; what it prints goes to ``log`` in its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scratch = folder / "tmp"
    scratch.mkdir()
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(DRIVER), golden, side, str(root), str(folder)],
            cwd=root, env=environment(root, scratch), stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def compare(golden: str, trees: dict[Side, Path], folder: Path, limit: float) -> str:
    """Run a golden on both trees at once; return how they differ, or nothing."""
    stores = {side: folder / golden / side for side in trees}
    running = {side: start(golden, side, root, stores[side]) for side, root in trees.items()}
    failed = []
    try:
        for side, process in running.items():
            try:
                if process.wait(limit):
                    failed.append(f"{side}: {(stores[side] / 'log').read_text(errors='replace')[-3000:]}")
            except subprocess.TimeoutExpired:
                failed.append(f"{side}: not done after {limit:g} s")
    finally:
        for process in running.values():
            with suppress(ProcessLookupError):  # what it has started is in its group, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if failed:
        return f"{golden} failed\n" + "\n".join(failed)
    found = first_difference(golden, stores["before"], stores["after"], read_yaml(HERE / "deleted.yaml"))
    return "" if found is None else str(found)


def main() -> int:
    """Compare what the command line asks for; return the exit status."""
    goldens = golden_modules()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("goldens", nargs="*", help=f"by default all: {' '.join(goldens)}")
    parser.add_argument("--keep", type=Path, help="keep what is stored in this folder")
    asked = parser.parse_args()
    if unknown := [name for name in asked.goldens if name not in goldens]:
        parser.error(f"there is no golden {' '.join(unknown)}; there are {' '.join(goldens)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    settings, differing = read_yaml(HERE / "settings.yaml"), []
    with tempfile.TemporaryDirectory() as made:
        folder = (asked.keep or Path(made)).resolve()
        with checkout(settings["before"], Path(made) / "before") as before:
            trees: dict[Side, Path] = {"before": before, "after": ROOT}
            for golden in asked.goldens or goldens:
                began = time.monotonic()
                found = compare(golden, trees, folder, settings["timeout"])
                took = f"{time.monotonic() - began:.0f} s"
                print(found or f"{golden}: the same ({took})", flush=True)
                if found:
                    differing.append(golden)
    if differing:
        print(f"{len(differing)} differ: {' '.join(differing)}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
