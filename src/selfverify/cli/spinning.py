"""How long OpenMP's threads spin while they wait for work."""

from __future__ import annotations

from collections.abc import MutableMapping

OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "KMP_BLOCKTIME")
"""Variables by which people and launchers decide about OpenMP's threads themselves."""

SPINS = "2000"
"""Turns of GNU OpenMP's waiting loop before a thread sleeps; its own default takes milliseconds."""


def spin_briefly(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads sleep soon while they wait, unless one of `OPENMP` is set already.

    Torch's threads spin between operations. Beside other busy programs they take the cores from the very
    thread that they wait for. The OpenMP library reads the variable when it is loaded, so this has to be
    called before torch is imported.
    """
    if not any(name in environment for name in OPENMP):
        environment["GOMP_SPINCOUNT"] = SPINS
