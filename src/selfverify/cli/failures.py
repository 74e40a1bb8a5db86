"""How a command's failures end: in one readable message, not in a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from selfverify.cli.printing import say
from selfverify.core.errors import SelfVerifyError
from selfverify.core.files import reason_of


@contextmanager
def readable_failures(goes_on: Callable[[], str] = str) -> Iterator[None]:
    """End with a message and an exit status where a command fails in a way that is foreseen, or by Ctrl-C.

    Args:
        goes_on: Returns what people can do after Ctrl-C, to stand behind "interrupted".
    """
    try:
        yield
    except SelfVerifyError as error:
        say(str(error), "bold red", "error: ")
        raise typer.Exit(2) from None
    except OSError as error:
        reason = reason_of(error)
        if error.filename is None and reason is None:
            raise
        named = error.filename2 or error.filename
        said = reason or error.strerror
        say(f"{named}: {said}" if named else f"{said}", "bold red", "error: ")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        say(f"interrupted{goes_on()}", "yellow")
        raise typer.Exit(130) from None
