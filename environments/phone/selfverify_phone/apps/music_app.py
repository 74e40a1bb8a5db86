"""Music: songs, lists of songs, and a player."""

from __future__ import annotations

from functools import partial
from typing import Any

from selfverify.agents.facts import Listing
from selfverify_phone.system.device import App, Frame, Phone
from selfverify_phone.system.forms import (
    confirm,
    draft,
    facts_of,
    field,
    in_order,
    option_id,
    options_of,
    row_id,
    search_of,
    view,
)
from selfverify_phone.system.widgets import View, Widget, button, counted, icon, row, switch, tab, text

REPEAT = ("Off", "One", "All")


def root(phone: Phone, frame: Frame) -> View:
    now = frame["form"].get("view", "songs")
    names = ("songs", "lists", "player")
    made = {"songs": songs, "lists": lists, "player": player}[now](phone, frame)
    made.tabs = [tab(name, name.capitalize(), name == now, partial(view, phone, name)) for name in names]
    return made


def line(phone: Phone, key: str) -> Widget:
    record = phone.data["song"][key]
    facts = facts_of("song", key, record, "title", "artist")
    return row(
        row_id(key), str(record["title"]), partial(phone.open, "song", key=key), str(record["artist"]), facts
    )


def songs(phone: Phone, frame: Frame) -> View:
    records = phone.data["song"]
    keys = in_order(records, "title")
    return View(
        "Songs",
        [line(phone, key) for key in keys],
        bar=[icon("search", partial(phone.open, "search", focus="query"))],
        count=len(keys),
        facts=(counted(Listing.of("song"), len(keys)),),
    )


def search(phone: Phone, frame: Frame) -> View:
    return search_of(phone, frame, "song", "title", partial(line, phone))


def song(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["song"][key]

    def like() -> None:
        record["liked"] = not record["liked"]

    def play() -> None:
        phone.data["player"]["main"].update(song=record["title"], on=True)

    return View(
        str(record["title"]),
        [
            text("Artist", str(record["artist"]), *facts_of("song", key, record, "artist")),
            text("Plays", str(record["plays"]), *facts_of("song", key, record, "plays")),
            button("play", "Play", play),
            button("add", "Add to list", partial(phone.open, "add", key=key)),
        ],
        bar=[icon("like", like, on=bool(record["liked"]), facts=facts_of("song", key, record, "liked"))],
        facts=facts_of("song", key, record, "title"),
    )


def add(phone: Phone, frame: Frame) -> View:
    title = str(phone.data["song"][frame["args"]["key"]]["title"])

    def put(name: str) -> None:
        phone.close()
        track = {"playlist": name, "song": title}
        if track in phone.data["track"].values():
            phone.toast("Already in the list")
        else:
            phone.add("track", dict(track))
            phone.toast("Added")

    names = [str(record["name"]) for record in phone.data["playlist"].values()]
    body = [row(option_id(name, i), name, partial(put, name)) for i, name in enumerate(names)]
    return View("Add to list", body, style="dialog")


def tracks(phone: Phone, name: str) -> list[str]:
    """The keys of a list's tracks."""
    return [key for key, record in phone.data["track"].items() if record["playlist"] == name]


def lists(phone: Phone, frame: Frame) -> View:
    records = phone.data["playlist"]

    def said(key: str) -> Widget:
        name = str(records[key]["name"])
        number = len(tracks(phone, name))
        facts = facts_of("playlist", key, records[key], "name")
        facts += (counted(Listing.of("track", "playlist", "=", name), number),)
        shown = f"{number} song{'s' * (number != 1)}"
        return row(row_id(key), name, partial(phone.open, "list", key=key), shown, facts)

    return View(
        "Lists",
        [said(key) for key in records],
        floating=icon("add", partial(phone.open, "new", focus="name")),
        count=len(records),
        facts=(counted(Listing.of("playlist"), len(records)),),
    )


def new(phone: Phone, frame: Frame) -> View:
    name = str(draft(frame, {"name": ""})["name"])

    def save() -> None:
        phone.close()
        if any(record["name"] == name for record in phone.data["playlist"].values()):
            phone.toast("There is such a list")
        else:
            phone.reveal(row_id(phone.add("playlist", {"name": name})))

    body = [field(phone, frame, "name", name), button("save", "Save", save, enabled=bool(name))]
    return View("New list", body, style="dialog")


def playlist(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]
    record = phone.data["playlist"][key]
    name = str(record["name"])
    keys = tracks(phone, name)
    records = phone.data["track"]
    body = [
        row(
            row_id(track),
            str(records[track]["song"]),
            facts=facts_of("track", track, records[track], "song", "playlist"),
            hold=partial(phone.open, "remove", key=track),
        )
        for track in keys
    ]
    return View(
        name,
        body or [text("No songs")],
        bar=[icon("delete", partial(phone.open, "delete", key=key))],
        count=len(keys),
        facts=(
            *facts_of("playlist", key, record, "name"),
            counted(Listing.of("track", "playlist", "=", name), len(keys)),
        ),
    )


def removed(phone: Phone, args: dict[str, Any]) -> None:
    del phone.data["track"][args["key"]]


def deleted(phone: Phone, args: dict[str, Any]) -> None:
    name = str(phone.data["playlist"].pop(args["key"])["name"])
    for track in tracks(phone, name):
        del phone.data["track"][track]


def player(phone: Phone, frame: Frame) -> View:
    record = phone.data["player"]["main"]

    def turn(name: str) -> None:
        record[name] = not record[name]

    state, verb = ("Playing", "pause") if record["on"] else ("Paused", "play")
    return View(
        "Player",
        [
            text(state, str(record["song"]), *facts_of("player", "main", record, "song", "on")),
            button(verb, verb.capitalize(), partial(turn, "on")),
            switch("shuffle", "Shuffle", bool(record["shuffle"]), partial(turn, "shuffle"),
                   *facts_of("player", "main", record, "shuffle")),
            row("repeat", "Repeat", partial(phone.open, "repeat")),
        ],
    )  # fmt: skip


def repeat(phone: Phone, frame: Frame) -> View:
    record = phone.data["player"]["main"]

    def pick(value: str) -> None:
        phone.close()
        record["repeat"] = value

    facts = facts_of("player", "main", record, "repeat")
    return View("Repeat", options_of(REPEAT, str(record["repeat"]), pick, facts), style="dialog")


APP = App(
    "music",
    "Music",
    "#ad1457",
    ("song", "playlist", "track", "player"),
    {
        "root": root,
        "search": search,
        "song": song,
        "add": add,
        "new": new,
        "list": playlist,
        "remove": confirm("Remove song?", "Remove", removed),
        "delete": confirm("Delete list?", "Delete", deleted, back=2),
        "repeat": repeat,
    },
)
