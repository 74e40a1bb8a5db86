"""Tasks and questions about songs, lists and the player."""

from __future__ import annotations

from selfverify.agents.facts import same
from selfverify.agents.goals import Has, Listed
from selfverify_phone.apps.music_app import REPEAT
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Template, Thing, only
from selfverify_phone.templates.patterns import add, both, choose, delete, in_any_order, in_turn, switch
from selfverify_phone.templates.questions import ask, more, number
from selfverify_phone.templates.ways import BACK, Step, either, hold, see, tap


def songs_of(world: World, name: str) -> list[str]:
    return [str(r["song"]) for r in world.data["track"].values() if r["playlist"] == name]


def key_of(world: World, title: str) -> str:
    return next(key for key, record in world.data["song"].items() if same(record["title"], title))


def track(world: World) -> str:
    """A song of a list; nothing else may change the song."""
    key = world.pick("track")
    world.use("song", key_of(world, str(world.get("track", key)["song"])))
    return key


def to_track(world: World, key: str) -> list[Step]:
    name = world.get("track", key)["playlist"]
    of_list = next(k for k, record in world.data["playlist"].items() if record["name"] == name)
    return [tap(f"r{of_list}"), hold(f"r{key}")]


SONG = Thing("song", {"title": "title"})
OTHER = Thing("song", {"other": "title"})
LISTED = Thing(
    "song", {"title": "title"}, way=lambda world, key: [either([tap(f"r{key}")], [see(f"r{key}")])]
)
PLAYLIST = Thing("playlist", {"name": "name"}, [tap("lists")])
TRACK = Thing("track", {"name": "playlist", "title": "song"}, [tap("lists")], to_track, track)
PLAYER = Thing("player", way=lambda world, key: [tap("player")], draw=only("main"))
LIKE = switch(SONG, "liked", True, "like")
SHUFFLE, REPEATED = switch(PLAYER, "shuffle", "other"), choose(PLAYER, "repeat", REPEAT)


def new_list(world: World) -> str:
    return str(world.unlike("playlist", "name", lambda: world.one(words.LISTS)))


def play(world: World) -> Drawn:
    key = SONG.drawn(world)
    title = SONG.name(world, key)
    world.get("player", "main").update(song="Amber" if title != "Amber" else "Ocean", on=False)
    return Drawn(
        {"title": title},
        [Has(kind="player", key="main", values={"song": title, "on": True})],
        [tap(f"r{key}"), tap("play")],
        [BACK, tap("player")],
    )


def put(world: World) -> Drawn:
    """A song that is put into a list which has it not."""
    key = PLAYLIST.drawn(world)
    name = PLAYLIST.name(world, key)
    titles = [str(record["title"]) for record in world.data["song"].values()]
    title = world.one([title for title in titles if title not in songs_of(world, name)])
    song = key_of(world, title)
    world.use("song", song)
    return Drawn(
        {"title": title, "name": name},
        [Has(kind="track", match={"playlist": name, "song": title}, new=True)],
        [tap(f"r{song}"), tap("add"), tap(name.casefold())],
        [BACK, *PLAYLIST.to(world, key)],
    )


def shuffle_and_add(world: World) -> Drawn:
    shuffled, added = SHUFFLE.draw(world), put(world)
    return both(shuffled, added, [*added.solve, BACK, *shuffled.solve], added.prove[1:])


def how_many(world: World) -> Drawn:
    key = PLAYLIST.drawn(world)
    name = PLAYLIST.name(world, key)
    needs = [Listed(kind="track", match={"playlist": name})]
    return Drawn({"name": name}, needs, PLAYLIST.to(world, key), answer=number(len(songs_of(world, name))))


TASKS: dict[str, Template] = {
    "like": LIKE,
    "unlike": switch(SONG, "liked", False, "like"),
    "play": Template(play, hidden=True),
    "shuffle": SHUFFLE,
    "repeat": REPEATED,
    "new-list": add(PLAYLIST, new_list, {}),
    "add": Template(put, hidden=True),
    "remove": delete(TRACK, "remove"),
    "delete-list": delete(PLAYLIST, "delete", "delete").kept_for_tests(),
    "like-and-repeat": in_turn(LIKE, REPEATED, BACK),
    "shuffle-and-add": Template(shuffle_and_add, hidden=True, exhibits=2).kept_for_tests(),
    "like-two": in_any_order(LIKE, switch(OTHER, "liked", True, "like")),
    "like-and-shuffle": in_turn(LIKE, SHUFFLE, BACK),
    "ask-artist": ask(LISTED, "artist", "text", words.ARTISTS),
    "ask-songs": Template(how_many, "query"),
    "ask-plays": ask(SONG, "plays"),
    "ask-more": more(SONG, OTHER, "plays"),
}
