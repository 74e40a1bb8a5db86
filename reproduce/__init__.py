"""The notebook of our experiments: the papers' tables of our own runs, and grids of runs.

    python -m reproduce.grid adpo-digits      # from a checkout; `reproduce/grids/` has the grids

It is not in the wheel. ``python -m reproduce.adpo --help``, and of its neighbours, says what a script takes.
"""

import os

from selfverify.cli.main import spin_briefly

spin_briefly(os.environ)  # before anything here imports torch
