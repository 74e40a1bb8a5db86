"""OpenMP's threads spin briefly in the commands, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from selfverify.cli.main import OPENMP, SPINS, spin_briefly

SHOW = "import os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
COMMAND = f"""
import sys
from selfverify.cli import main
def app():
    {SHOW}
main.app = app
main.main()
"""


def told(program: str, **variables: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in OPENMP}
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean | variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_commands_set_it_before_torch_is_imported() -> None:
    assert told(COMMAND) == f"{SPINS} False"
    assert 1_000 <= int(SPINS) <= 10_000


def test_the_library_does_not() -> None:
    assert told(f"import selfverify, selfverify.cli.main, torch; {SHOW}") == "None True"


@pytest.mark.parametrize("name", OPENMP)
def test_what_the_user_has_set_stays(name: str) -> None:
    own = {name: "7"}
    spin_briefly(own)
    assert own == {name: "7"}


def test_torchs_threads_get_it() -> None:
    """The variable is read when torch's OpenMP library is loaded, in a process of its own as well."""
    program = COMMAND.replace(SHOW, "import subprocess; print(subprocess.check_output(['env'], text=True))")
    assert f"GOMP_SPINCOUNT={SPINS}" in told(program)
    assert told(COMMAND, OMP_NUM_THREADS="2") == "None False"
