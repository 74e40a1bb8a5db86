"""Drawing a phone's contents: plausible, different for every seed, with what a template asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from selfverify.agents.facts import Scalar, same
from selfverify.agents.phone.apps.clock_app import CITIES, DAYS
from selfverify.agents.phone.apps.contacts_app import GROUPS
from selfverify.agents.phone.apps.settings_app import ACCESS, ITEMS
from selfverify.agents.phone.contents import words
from selfverify.agents.phone.system.device import Data, Record

T = TypeVar("T")
APPS = ("contacts", "clock", "calendar", "money", "music", "maps", "reader")


class World:
    """The contents of a phone while a task is drawn.

    Args:
        rng: Decides everything.

    Attributes:
        data: The records by kind and key.
        used: The records that the task is about, as (kind, key); nothing else may change them.
        noted: Whether the task is about notes, which nothing else may change then.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.data: Data = {}
        self.used: set[tuple[str, str]] = set()
        self.noted = False
        for fill in (self._settings, self._contacts, self._clock):
            fill()

    # For templates.

    def one(self, values: Sequence[T], *but: T) -> T:
        """One of the values, but none of those named."""
        return self.rng.choice([value for value in values if value not in but])

    def some(self, values: Sequence[T], number: int) -> list[T]:
        """Several different ones of the values."""
        return self.rng.sample(list(values), number)

    def pick(self, kind: str, **where: Scalar) -> str:
        """The key of a record that no other pick has taken; where it must have values, it is given them."""
        free = [key for key in self.data[kind] if (kind, key) not in self.used]
        fit = [k for k in free if all(same(self.data[kind][k].get(a), v) for a, v in where.items())]
        key = self.rng.choice(fit or free)
        self.data[kind][key].update(where)
        self.used.add((kind, key))
        return key

    def use(self, kind: str, *keys: str) -> None:
        """Take records, or all of a kind, without changing them."""
        self.used |= {(kind, key) for key in keys or self.data[kind]}

    def get(self, kind: str, key: str) -> Record:
        """A record."""
        return self.data[kind][key]

    def next(self, kind: str, after: int = 0) -> str:
        """The key that a record of a kind will get when the agent adds one, or so many before it."""
        return str(max((int(key) for key in self.data[kind]), default=0) + 1 + after)

    def unlike(self, kind: str, attribute: str, draw: Callable[[], T]) -> T:
        """A drawn value that no record of a kind has."""
        taken = {record[attribute] for record in self.data[kind].values()}
        while (value := draw()) in taken:
            pass
        return value

    def setting(self, name: str, value: Scalar) -> None:
        """Give a setting a value."""
        self.data["setting"][name]["value"] = value

    def person(self) -> str:
        """A name that nobody on the phone has."""
        return self.unlike("contact", "name", self._name)

    def number(self) -> str:
        """A telephone number."""
        return "06 " + " ".join(f"{self.rng.randrange(100):02}" for _ in range(3))

    def time(self) -> str:
        """A time of day at five minutes."""
        return f"{self.rng.randrange(5, 23):02}:{self.rng.randrange(0, 60, 5):02}"

    def flip(self) -> bool:
        """True or False."""
        return self.rng.random() < 0.5

    # What is on every phone.

    def _name(self) -> str:
        return f"{self.one(words.FIRST)} {self.one(words.LAST)}"

    def _add(self, kind: str, record: Record) -> str:
        records = self.data.setdefault(kind, {})
        key = str(len(records) + 1)
        records[key] = record
        return key

    def _settings(self) -> None:
        read_only: dict[str, Scalar] = {
            "name": self.one(words.PHONES),
            "model": f"{self.one(words.MODELS)} {self.rng.randint(5, 12)}",
            "version": str(self.rng.randint(10, 16)),
            "level": self.rng.randint(11, 99),
            "storage": self.rng.randint(21, 99),
        }
        settings: dict[str, Record] = {}
        for name, item in ITEMS.items():
            choice: Scalar = self.one(item.options) if item.options else self.flip()
            settings[name] = {"value": read_only.get(name, choice)}
        self.data["setting"] = settings
        for i, name in enumerate(self.some(words.NETWORKS, 4)):
            self._add("network", {"name": name, "joined": i == 0})
        for name in self.some(words.DEVICES, 4):
            self._add("device", {"name": name, "connected": self.flip()})
        sizes = self.some(range(21, 99), len(APPS))
        self.data["permit"] = {
            app: {"notify": self.flip(), "location": self.one(ACCESS), "size": size}
            for app, size in zip(APPS, sizes, strict=True)
        }

    def _contacts(self) -> None:
        self.data["contact"] = {}
        for i in range(self.rng.randint(12, 14)):
            self._add(
                "contact",
                {
                    "name": self.person(),
                    "phone": self.number(),
                    "company": self.one(words.COMPANIES),
                    "group": self.one(GROUPS),
                    "star": i % 4 == 1,
                    "note": self.one(words.NOTES) if self.flip() else "",
                },
            )

    def _clock(self) -> None:
        self.data["alarm"] = {}
        for label in self.some(words.LABELS, self.rng.randint(4, 5)):
            time = self.unlike("alarm", "time", self.time)
            self._add(
                "alarm",
                {
                    "time": time,
                    "on": self.flip(),
                    "label": label,
                    "days": self.one(DAYS),
                    "vibrate": self.flip(),
                },
            )
        for name in self.some(list(CITIES), 4):
            self._add("city", {"name": name, "hours": CITIES[name]})
        self.data["timer"] = {"main": {"minutes": self.rng.randint(1, 20), "on": False}}
