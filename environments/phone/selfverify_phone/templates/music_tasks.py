"""Tasks about songs, lists and the player."""

from __future__ import annotations

from selfverify.agents.facts import same
from selfverify.agents.goals import Absent, Has
from selfverify_phone.apps.music_app import REPEAT
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.ways import BACK, Step, either, hold, launch, tap, write

SHELF = Shelf("music")
OPEN = launch("music")


def song(world: World) -> tuple[str, str]:
    """A song's key and title."""
    key = world.pick("song")
    return key, str(world.get("song", key)["title"])


def songs_of(world: World, name: str) -> list[str]:
    return [str(r["song"]) for r in world.data["track"].values() if r["playlist"] == name]


def missing(world: World) -> tuple[str, str, str]:
    """The key and name of a list, and a song that it has not."""
    key = world.pick("playlist")
    name = str(world.get("playlist", key)["name"])
    titles = [str(record["title"]) for record in world.data["song"].values()]
    title = world.one([title for title in titles if title not in songs_of(world, name)])
    world.use("song", key_of(world, title))
    return key, name, title


def key_of(world: World, title: str) -> str:
    return next(key for key, record in world.data["song"].items() if same(record["title"], title))


def into(world: World, title: str, name: str) -> list[Step]:
    """From the songs to a song's page, with the song put into a list."""
    return [tap(f"r{key_of(world, title)}"), tap("add"), tap(name.casefold())]


def liking(world: World, liked: bool) -> Drawn:
    key, title = song(world)
    world.get("song", key)["liked"] = not liked
    return Drawn(
        {"title": title},
        [Has(kind="song", match={"title": title}, values={"liked": liked})],
        [OPEN, tap(f"r{key}"), tap("like")],
    )


@SHELF.operation("Like the song {title}.", "Mark {title} as liked.", "I like {title}: say so.")
def like(world: World) -> Drawn:
    return liking(world, True)


@SHELF.operation(
    "Do not like {title} any more.",
    "Remove the like from the song {title}.",
    "Take the like away from {title}.",
)
def unlike(world: World) -> Drawn:
    return liking(world, False)


@SHELF.operation("Play {title}.", "Let me hear the song {title}.", "Start the song {title}.", hidden=True)
def play(world: World) -> Drawn:
    key, title = song(world)
    world.get("player", "main").update(song="Amber" if title != "Amber" else "Ocean", on=False)
    return Drawn(
        {"title": title},
        [Has(kind="player", key="main", values={"song": title, "on": True})],
        [OPEN, tap(f"r{key}"), tap("play")],
        [BACK, tap("player")],
    )


@SHELF.operation(
    "Turn shuffle {state}.",
    "Switch {state} shuffle in the player.",
    "The player should have shuffle {state}.",
)
def shuffle(world: World) -> Drawn:
    wanted = not world.get("player", "main")["shuffle"]
    return Drawn(
        {"state": "on" if wanted else "off"},
        [Has(kind="player", key="main", values={"shuffle": wanted})],
        [OPEN, tap("player"), tap("shuffle")],
    )


def repeated(world: World) -> str:
    return world.one(REPEAT, str(world.get("player", "main")["repeat"]))


@SHELF.operation(
    "Set repeat to {value}.",
    "Change the repeat of the player to {value}.",
    "The player should repeat: {value}.",
    hidden=True,
)
def repeat(world: World) -> Drawn:
    wanted = repeated(world)
    return Drawn(
        {"value": wanted},
        [Has(kind="player", key="main", values={"repeat": wanted})],
        [OPEN, tap("player"), tap("repeat"), tap(wanted.casefold())],
        [tap("repeat")],
    )


@SHELF.operation(
    "Make a new list {name}.",
    "Create the list {name} for songs.",
    "I want a list of songs called {name}.",
)
def new_list(world: World) -> Drawn:
    name = world.unlike("playlist", "name", lambda: world.one(words.LISTS))
    return Drawn(
        {"name": name},
        [Has(kind="playlist", match={"name": name}, new=True)],
        [OPEN, tap("lists"), tap("add"), write(str(name)), tap("save")],
    )  # fmt: skip


@SHELF.operation(
    "Add {title} to the list {name}.",
    "Put the song {title} into {name}.",
    "The list {name} should have {title}.",
    hidden=True,
)
def add(world: World) -> Drawn:
    key, name, title = missing(world)
    return Drawn(
        {"title": title, "name": name},
        [Has(kind="track", match={"playlist": name, "song": title}, new=True)],
        [OPEN, *into(world, title, name)],
        [BACK, tap("lists"), tap(f"r{key}")],
    )


@SHELF.operation(
    "Remove {title} from the list {name}.",
    "Take the song {title} out of {name}.",
    "The list {name} should not have {title} any more.",
)
def remove(world: World) -> Drawn:
    track = world.pick("track")
    record = world.get("track", track)
    name, title = str(record["playlist"]), str(record["song"])
    key = next(k for k, r in world.data["playlist"].items() if r["name"] == name)
    world.use("song", key_of(world, title))
    return Drawn(
        {"title": title, "name": name},
        [Absent(kind="track", key=track, match={"playlist": name, "song": title})],
        [OPEN, tap("lists"), tap(f"r{key}"), hold(f"r{track}"), tap("remove")],
    )


@SHELF.operation(
    "Delete the list {name}.",
    "Remove the list {name} from my music.",
    "I do not need the list {name} any more: delete it.",
    held_out=True,
)
def delete_list(world: World) -> Drawn:
    key = world.pick("playlist")
    name = str(world.get("playlist", key)["name"])
    return Drawn(
        {"name": name},
        [Absent(kind="playlist", key=key, match={"name": name})],
        [OPEN, tap("lists"), tap(f"r{key}"), tap("delete"), tap("delete")],
    )


@SHELF.operation(
    "Like {title} and set repeat to {value}.",
    "Set the player to repeat {value}, and like the song {title}.",
    "Two things: like {title}; repeat {value}.",
    hidden=True,
    exhibits=2,
)
def like_and_repeat(world: World) -> Drawn:
    drawn = liking(world, True)
    wanted = repeated(world)
    return Drawn(
        {**drawn.says, "value": wanted},
        [*drawn.needs, Has(kind="player", key="main", values={"repeat": wanted})],
        [*drawn.solve, BACK, tap("player"), tap("repeat"), tap(wanted.casefold())],
        [tap("repeat")],
    )


@SHELF.operation(
    "Turn shuffle {state} and add {title} to the list {name}.",
    "Put {title} into the list {name}, and switch shuffle {state}.",
    "The list {name} should have {title}; shuffle {state}.",
    hidden=True,
    exhibits=2,
    held_out=True,
)
def shuffle_and_add(world: World) -> Drawn:
    wanted = not world.get("player", "main")["shuffle"]
    key, name, title = missing(world)
    add, turn = into(world, title, name), [tap("player"), tap("shuffle")]
    return Drawn(
        {"state": "on" if wanted else "off", "title": title, "name": name},
        [
            Has(kind="player", key="main", values={"shuffle": wanted}),
            Has(kind="track", match={"playlist": name, "song": title}, new=True),
        ],
        [OPEN, *add, BACK, *turn],
        [tap("lists"), tap(f"r{key}")],
    )


@SHELF.operation(
    "Like the songs {title} and {other}.",
    "Mark {title} and {other} as liked.",
    "I like {title} and {other}: say so for both.",
    exhibits=2,
)
def like_two(world: World) -> Drawn:
    found = [song(world) for _ in range(2)]
    for key, _ in found:
        world.get("song", key)["liked"] = False
    one, two = ([tap(f"r{key}"), tap("like")] for key, _ in found)
    return Drawn(
        {"title": found[0][1], "other": found[1][1]},
        [Has(kind="song", match={"title": title}, values={"liked": True}) for _, title in found],
        [OPEN, either([*one, BACK, *two], [*two, BACK, *one])],
    )


@SHELF.operation(
    "Like {title} and turn shuffle {state}.",
    "Switch shuffle {state}, and like the song {title}.",
    "Two things: like {title}; shuffle {state}.",
    exhibits=2,
)
def like_and_shuffle(world: World) -> Drawn:
    drawn = liking(world, True)
    wanted = not world.get("player", "main")["shuffle"]
    return Drawn(
        {**drawn.says, "state": "on" if wanted else "off"},
        [*drawn.needs, Has(kind="player", key="main", values={"shuffle": wanted})],
        [*drawn.solve, BACK, tap("player"), tap("shuffle")],
    )
