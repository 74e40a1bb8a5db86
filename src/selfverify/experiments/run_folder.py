"""A run's folder, which one run at a time writes into, with however many processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from selfverify.core import ranks
from selfverify.core.files import held_by_another, make_output_folder, only_writer


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Make a folder and hold it (`only_writer`). All processes of a run must call this; the first one holds.

    Raises:
        ConfigError: The folder cannot be made, or another run holds it; in all processes.
        FileError: It was deleted, moved or taken over meanwhile (`require_held`).
    """
    with ExitStack() as held:

        def hold() -> None:
            make_output_folder(folder)
            held.enter_context(only_writer(folder))

        ranks.on_first(hold)
        if ranks.index():
            held.enter_context(held_by_another(folder))
        yield
