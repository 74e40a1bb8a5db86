"""Templates of tasks: what varies with the seed, how it is asked, when it is done, how an expert does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from selfverify.agents.goals import Absent, Answer, Has, Listed
from selfverify_phone.contents.world import World
from selfverify_phone.templates.ways import Step

Kind = Literal["operation", "query"]


@dataclass(slots=True)
class Drawn:
    """What a template draws for one seed.

    Args:
        says: What the wordings' placeholders stand for.
        needs: What has to be so; for a query what its answer rests on.
        solve: The expert's way until the task is done or, for a query, until the answer has been seen.
        prove: Its further way until there is evidence; empty where there is evidence already.
        answer: What a query's message has to say.
    """

    says: dict[str, str]
    needs: Sequence[Has | Absent | Listed]
    solve: list[Step]
    prove: list[Step] = field(default_factory=list)
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task.

    Args:
        name: What it is called.
        app: The app that it is mostly about, by which apps are held out.
        kind: Operation or query.
        wordings: Several ways to ask, with placeholders.
        draw: Draws a plan, and puts into the world what it needs.
        hidden: Whether the shortest way ends on a screen that does not show the result, so that the agent
            must go on to find evidence.
        exhibits: How many exhibits the smallest sufficient evidence has.
        held_out: Whether it is kept out of training.
    """

    name: str
    app: str
    kind: Kind
    wordings: tuple[str, ...]
    draw: Callable[[World], Drawn]
    hidden: bool
    exhibits: int
    held_out: bool


class Shelf:
    """The templates of one app; its methods are decorators of the functions that draw plans.

    Args:
        app: The app's name.
    """

    def __init__(self, app: str) -> None:
        self.app = app
        self.templates: list[Template] = []

    def operation(
        self, *wordings: str, hidden: bool = False, exhibits: int = 1, held_out: bool = False
    ) -> Callable[[Callable[[World], Drawn]], Callable[[World], Drawn]]:
        """A task that changes something; see `Template`."""
        return self._shelved("operation", wordings, hidden, exhibits, held_out)

    def query(
        self, *wordings: str, exhibits: int = 1, held_out: bool = False
    ) -> Callable[[Callable[[World], Drawn]], Callable[[World], Drawn]]:
        """A task that asks for something; see `Template`."""
        return self._shelved("query", wordings, False, exhibits, held_out)

    def _shelved(
        self, kind: Kind, wordings: tuple[str, ...], hidden: bool, exhibits: int, held_out: bool
    ) -> Callable[[Callable[[World], Drawn]], Callable[[World], Drawn]]:
        def shelve(draw: Callable[[World], Drawn]) -> Callable[[World], Drawn]:
            name = f"{self.app}-{draw.__name__.strip('_').replace('_', '-')}"
            template = Template(name, self.app, kind, wordings, draw, hidden, exhibits, held_out)
            self.templates.append(template)
            return draw

        return shelve
