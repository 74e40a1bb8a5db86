"""Music: songs, lists of songs, and a player."""

from __future__ import annotations

from functools import partial

from selfverify.agents.facts import Listing
from selfverify_phone.system.device import App, Frame, Phone, Record
from selfverify_phone.system.forms import Builder, draft, field, in_order, option_id, row_id
from selfverify_phone.system.records import Kind, add_icon, delete_icon, flip, opens, search_icon, tabbed
from selfverify_phone.system.widgets import View, Widget, button, counted, row, text

REPEAT = ("Off", "One", "All")
SONG, PLAYLIST = Kind("song", "title", leads=True), Kind("playlist", "name")
TRACK, PLAYER = Kind("track", held="remove"), Kind("player")


def sung(phone: Phone, key: str) -> Widget:
    return SONG.line(phone, key, "title", "artist", value=str(phone.data["song"][key]["artist"]))


def songs(phone: Phone, frame: Frame) -> View:
    lines = [sung(phone, key) for key in in_order(phone.data["song"], "title")]
    return SONG.listed("Songs", lines, bar=[search_icon(phone)])


def song(phone: Phone, frame: Frame) -> View:
    key = frame["args"]["key"]

    def play() -> None:
        phone.data["player"]["main"].update(song=phone.data["song"][key]["title"], on=True)

    body = [
        SONG.said(phone, key, "artist"),
        SONG.said(phone, key, "plays"),
        button("play", "Play", play),
        button("add", "Add to list", opens(phone, "add", key=key)),
    ]
    return SONG.page(phone, key, body, bar=[SONG.icon(phone, key, "liked", "like")])


def add(phone: Phone, frame: Frame) -> View:
    title = str(phone.data["song"][frame["args"]["key"]]["title"])

    def put(name: str) -> None:
        phone.close()
        track: Record = {"playlist": name, "song": title}
        if track in phone.data["track"].values():
            phone.toast("Already in the list")
        else:
            phone.add("track", track)
            phone.toast("Added")

    names = [str(record["name"]) for record in phone.data["playlist"].values()]
    body = [row(option_id(name, i), name, partial(put, name)) for i, name in enumerate(names)]
    return View("Add to list", body, style="dialog")


def tracks(phone: Phone, name: str) -> list[str]:
    """The keys of a list's tracks."""
    return [key for key, record in phone.data["track"].items() if record["playlist"] == name]


def lists(phone: Phone, frame: Frame) -> View:
    def of_list(key: str, record: Record) -> Widget:
        name = str(record["name"])
        number = len(tracks(phone, name))
        facts = PLAYLIST.facts(phone, key, "name")
        facts += (counted(Listing.of("track", "playlist", "=", name), number),)
        shown = f"{number} song{'s' * (number != 1)}"
        return row(row_id(key), name, opens(phone, "list", key=key), shown, facts)

    lines = [of_list(key, record) for key, record in phone.data["playlist"].items()]
    return PLAYLIST.listed("Lists", lines, floating=add_icon(phone, "new", "name"))


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
    return TRACK.listed(
        name,
        [TRACK.line(phone, track, "song", "playlist") for track in tracks(phone, name)],
        *("playlist", "=", name),
        empty=text("No songs"),
        bar=[delete_icon(phone, key)],
        facts=PLAYLIST.facts(phone, key, "name"),
    )


def without_tracks(phone: Phone, record: Record) -> None:
    for track in tracks(phone, str(record["name"])):
        del phone.data["track"][track]


def player(phone: Phone, frame: Frame) -> View:
    record = phone.data["player"]["main"]
    state, verb = ("Playing", "pause") if record["on"] else ("Paused", "play")
    body = [
        text(state, str(record["song"]), *PLAYER.facts(phone, "main", "song", "on")),
        button(verb, verb.capitalize(), partial(flip, record, "on")),
        PLAYER.switch(phone, "main", "shuffle", "shuffle", "Shuffle"),
        row("repeat", "Repeat", opens(phone, "repeat")),
    ]
    return View("Player", body)


def repeat(phone: Phone, frame: Frame) -> View:
    return PLAYER.choices(phone, "Repeat", "main", "repeat", REPEAT)


SCREENS: dict[str, Builder] = {
    "root": tabbed({"songs": songs, "lists": lists, "player": player}),
    "search": SONG.search(sung),
    "song": song,
    "add": add,
    "new": new,
    "list": playlist,
    "remove": TRACK.erase("Remove", "song"),
    "delete": PLAYLIST.erase(called="list", back=2, after=without_tracks),
    "repeat": repeat,
}
APP = App("music", "Music", "#ad1457", ("song", "playlist", "track", "player"), SCREENS)
