"""Run one golden on one tree: `python tests/goldens/drive.py GOLDEN SIDE CHECKOUT FOLDER`.

The checkout's `src` and `tests` have to be on PYTHONPATH; the goldens themselves are always those beside this
file.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent


def golden_modules() -> dict[str, str]:
    """Return the module of each golden by its name (g1), in order."""
    stems = [path.stem for path in HERE.glob("g*_*.py") if path.stem.partition("_")[0][1:].isdigit()]
    names = {stem.partition("_")[0]: stem for stem in stems}
    return dict(sorted(names.items(), key=lambda pair: int(pair[0][1:])))


def main() -> None:
    """Run it, and write what it has stored."""
    golden, side, root, folder = sys.argv[1:]
    package = types.ModuleType("goldens")
    package.__path__ = [str(HERE)]
    sys.modules["goldens"] = package  # the other tree may have goldens of its own, which are not meant
    sys.path.remove(str(HERE))
    from goldens.tree import Tree

    tree = Tree("before" if side == "before" else "after", Path(root), Path(folder))
    importlib.import_module(f"goldens.{golden_modules()[golden]}").run(tree)
    tree.write()


if __name__ == "__main__":
    main()
