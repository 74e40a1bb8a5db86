"""Drawing a phone's contents: plausible, different for every seed, with what a template asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from selfverify.agents.facts import Scalar, same
from selfverify_phone.apps.calendar_app import DAYS as DATES
from selfverify_phone.apps.calendar_app import REMIND
from selfverify_phone.apps.clock_app import CITIES, DAYS
from selfverify_phone.apps.contacts_app import GROUPS
from selfverify_phone.apps.maps_app import UNITS
from selfverify_phone.apps.money_app import ACCOUNTS, CATEGORIES
from selfverify_phone.apps.music_app import REPEAT
from selfverify_phone.apps.reader_app import FONTS, SHELVES, SPACING
from selfverify_phone.apps.settings_app import ACCESS, ITEMS
from selfverify_phone.contents import words
from selfverify_phone.system.device import Data, Record

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
        self._settings()
        self._contacts()
        self._clock()
        self._calendar()
        self._money()
        self._music()
        self._maps()
        self._reader()

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

    def next(self, kind: str) -> str:
        """The key that a record of a kind will get when the agent adds one."""
        return str(max((int(key) for key in self.data[kind]), default=0) + 1)

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

    def amount(self) -> int:
        """An amount of money that no entry has."""
        taken = {record["amount"] for record in self.data["entry"].values()}
        return self.one([amount for amount in range(5, 100) if amount not in taken])

    def flip(self) -> bool:
        """True or False."""
        return self.rng.random() < 0.5

    # What is on every phone.

    def _name(self) -> str:
        return f"{self.one(words.FIRST)} {self.one(words.LAST)}"

    def _add(self, kind: str, /, **record: Scalar) -> None:
        records = self.data.setdefault(kind, {})
        records[str(len(records) + 1)] = record

    def _maybe(self, notes: Sequence[str]) -> str:
        """A note, or none."""
        return self.one(notes) if self.flip() else ""

    def _settings(self) -> None:
        read_only: dict[str, Scalar] = {
            "name": self.one(words.PHONES),
            "model": f"{self.one(words.MODELS)} {self.rng.randint(5, 12)}",
            "version": str(self.rng.randint(10, 16)),
            "level": self.rng.randint(11, 99),
            "storage": self.rng.randint(21, 99),
        }
        settings: dict[str, Scalar] = {}
        for name, item in ITEMS.items():
            choice: Scalar = self.one(item.options) if item.options else self.flip()
            settings[name] = read_only.get(name, choice)
        self._values("setting", settings)
        for i, name in enumerate(self.some(words.NETWORKS, 4)):
            self._add("network", name=name, joined=i == 0)
        for name in self.some(words.DEVICES, 4):
            self._add("device", name=name, connected=self.flip())
        sizes = self.some(range(21, 99), len(APPS))
        self.data["permit"] = {
            app: {"notify": self.flip(), "location": self.one(ACCESS), "size": size}
            for app, size in zip(APPS, sizes, strict=True)
        }

    def _values(self, kind: str, values: dict[str, Scalar]) -> None:
        self.data[kind] = {name: {"value": value} for name, value in values.items()}

    def _contacts(self) -> None:
        self.data["contact"] = {}
        for i in range(self.rng.randint(12, 14)):
            self._add(
                "contact",
                name=self.person(),
                phone=self.number(),
                company=self.one(words.COMPANIES),
                group=self.one(GROUPS),
                star=i % 4 == 1,
                note=self._maybe(words.NOTES),
            )

    def _clock(self) -> None:
        self.data["alarm"] = {}
        for label in self.some(words.LABELS, self.rng.randint(4, 5)):
            time, on = self.unlike("alarm", "time", self.time), self.flip()
            self._add("alarm", time=time, on=on, label=label, days=self.one(DAYS), vibrate=self.flip())
        for name in self.some(list(CITIES), 4):
            self._add("city", name=name, hours=CITIES[name])
        self.data["timer"] = {"main": {"minutes": self.rng.randint(1, 20), "on": False}}

    def _calendar(self) -> None:
        self.data["event"] = {}
        titles = self.some(words.TITLES, 12)
        days = [self.one(DATES) for _ in titles]
        for title, day in zip(titles, days, strict=True):
            self._add(
                "event",
                title=title,
                day=day if days.count(day) <= 4 else self.one(DATES),
                time=self.time(),
                place=self.one(words.PLACES),
                remind=self.one(REMIND),
                note=self._maybe(words.REMARKS),
            )

    def _money(self) -> None:
        self.data["entry"] = {}
        for i, note in enumerate(self.some(words.ENTRIES, 12)):
            income = i % 4 == 2
            category = self.one(("Salary", "Gift")) if income else self.one(CATEGORIES, "Salary", "Gift")
            self._add(
                "entry",
                type="Income" if income else "Expense",
                amount=self.amount(),
                category=category,
                account=self.one(ACCOUNTS),
                day=self.one(DATES),
                note=note,
            )
        for category in self.some(CATEGORIES, len(CATEGORIES)):
            self._add(
                "budget", category=category, limit=self.rng.randrange(100, 1000, 50) if self.flip() else 0
            )
        for account in ACCOUNTS:
            self._add("account", name=account, start=self.rng.randrange(1200, 3000, 100))

    def _music(self) -> None:
        for title in self.some(words.SONGS, 12):
            played = "song" in self.data
            plays = self.unlike("song", "plays", lambda: self.rng.randint(2, 99)) if played else 1
            self._add("song", title=title, artist=self.one(words.ARTISTS), liked=self.flip(), plays=plays)
        self.data["track"] = {}
        for name in self.some(words.LISTS, 4):
            self._add("playlist", name=name)
            for key in self.some(list(self.data["song"]), self.rng.randint(2, 4)):
                self._add("track", playlist=name, song=self.data["song"][key]["title"])
        now = self.one(list(self.data["song"].values()))["title"]
        self.data["player"] = {
            "main": {"song": now, "on": self.flip(), "shuffle": self.flip(), "repeat": self.one(REPEAT)}
        }

    def _maps(self) -> None:
        kinds = {name: kind for kind, names in words.SPOTS.items() for name in names}
        for i, name in enumerate(self.some(list(kinds), 12)):
            car = self.rng.randint(3, 20)
            self._add(
                "place",
                name=name,
                kind=kinds[name],
                street=self.one(words.STREETS),
                rating=self.rng.randint(3, 10),
                closes=f"{self.rng.randint(16, 23)}:00",
                car=car,
                bike=car * 2 + self.rng.randint(0, 3),
                foot=car * 4 + self.rng.randint(0, 3),
                star=i % 4 == 1,
                note=self._maybe(words.REMARKS),
            )
        home, work = self.some([str(record["name"]) for record in self.data["place"].values()], 2)
        traffic, units = self.flip(), self.one(UNITS)
        self._values("map", {"traffic": traffic, "units": units, "home": home, "work": work})
        self.data["route"] = {"main": {"to": home, "mode": "car", "on": False}}

    def _reader(self) -> None:
        for title in self.some(words.BOOKS, 10):
            pages = self.rng.randint(40, 99)
            self._add(
                "book",
                title=title,
                author=self.one(words.AUTHORS),
                shelf=self.one(SHELVES),
                pages=pages,
                page=self.rng.randint(1, pages - 2),
                done=self.flip(),
            )
        self.data["mark"] = {}
        for record in self.some(list(self.data["book"].values()), 4):
            self._add("mark", book=record["title"], page=self.rng.randint(1, int(record["pages"])))
        night, font = self.flip(), self.one(FONTS)
        self._values("reading", {"night": night, "font": font, "spacing": self.one(SPACING)})
