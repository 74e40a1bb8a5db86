"""Sentences for word problems. Each split has its own, so that an evaluation reads what nobody trained on.

``{A}`` and ``{B}`` are two people, ``{things}`` what is counted, ``{others}`` what is not, ``{boxes}`` what
holds them, ``{k}`` and ``{n}`` numbers of at least 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfverify.core.problem import Split

NAMES = ("Ada", "Ben", "Chloe", "Dan", "Elif", "Femi", "Greta", "Hugo", "Ines", "Jun", "Kira", "Leo")
THINGS = (
    "apples",
    "marbles",
    "stamps",
    "coins",
    "shells",
    "pencils",
    "buttons",
    "cards",
    "stickers",
    "beads",
)
BOXES = ("boxes", "bags", "jars", "baskets")


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of one split."""

    has: tuple[str, ...]
    """The first sentence: the number of things at the start."""
    holds: tuple[str, ...]
    """The first sentence of a story that begins with a product: so many boxes with so many things in each."""
    plus: tuple[str, ...]
    """Sentences by which there are more things."""
    minus: tuple[str, ...]
    """Sentences by which there are fewer things."""
    aside: tuple[str, ...]
    """Sentences with a number that does not matter."""
    asks: tuple[str, ...]
    """The last sentence: the question."""


SENTENCES: dict[Split, Sentences] = {
    "train": Sentences(
        has=(
            "{A} has {n} {things}.",
            "There are {n} {things} on {A}'s table.",
            "{A} starts the day with {n} {things}.",
            "This morning {A} counted {n} {things}.",
        ),
        holds=(
            "{A} has {k} {boxes} with {n} {things} in each.",
            "{A} fills {k} {boxes} with {n} {things} each.",
            "On {A}'s shelf stand {k} {boxes}, and each holds {n} {things}.",
        ),
        plus=(
            "Then {A} buys {n} more.",
            "{B} gives {A} {n} more {things}.",
            "Later {A} finds another {n}.",
            "{n} more {things} arrive in the mail for {A}.",
            "{A} wins {n} {things} in a game.",
        ),
        minus=(
            "{A} gives {n} of them to {B}.",
            "Then {n} of the {things} get lost.",
            "{A} sells {n} {things}.",
            "{B} takes {n} of them away.",
            "{A} throws {n} {things} away.",
        ),
        aside=(
            "{B} has {n} {others} at home.",
            "It takes {n} minutes.",
            "{A} also owns {n} {others}.",
        ),
        asks=(
            "How many {things} does {A} have now?",
            "How many {things} are there in the end?",
            "What is the number of {things} that {A} has left?",
        ),
    ),
    "validation": Sentences(
        has=("{A} keeps {n} {things} in a drawer.", "In {A}'s pocket are {n} {things}."),
        holds=("Each of {A}'s {k} {boxes} has {n} {things} in it.",),
        plus=("After lunch {B} brings {A} {n} extra {things}.", "{A} picks up {n} more on the way."),
        minus=("{B} borrows {n} {things} and never returns them.", "{n} of them fall into the river."),
        aside=("The walk home is {n} miles long.",),
        asks=("How many {things} remain with {A}?", "So how many {things} has {A} got?"),
    ),
    "test": Sentences(
        has=("{A}'s bag holds {n} {things}.", "{A} wakes up and sees {n} {things}."),
        holds=("{A} carries {k} {boxes}, every one with {n} {things} inside.",),
        plus=("In the evening {A} collects {n} more {things}.", "{B} drops off another {n} for {A}."),
        minus=("{A} hands {n} {things} over to {B}.", "A magpie steals {n} of them."),
        aside=("{B} is {n} years old.",),
        asks=(
            "At the end of the story, how many {things} does {A} own?",
            "Count the {things} that {A} has now.",
        ),
    ),
}
