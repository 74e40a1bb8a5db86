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
    "like": LIKE.asked("Like the song {title}.", "Mark {title} as liked.", "I like {title}: say so."),
    "unlike": switch(SONG, "liked", False, "like").asked(
        "Do not like {title} any more.",
        "Remove the like from the song {title}.",
        "Take the like away from {title}.",
    ),
    "play": Template(play, hidden=True).asked(
        "Play {title}.", "Let me hear the song {title}.", "Start the song {title}."
    ),
    "shuffle": SHUFFLE.asked(
        "Turn shuffle {state}.",
        "Switch {state} shuffle in the player.",
        "The player should have shuffle {state}.",
    ),
    "repeat": REPEATED.asked(
        "Set repeat to {value}.",
        "Change the repeat of the player to {value}.",
        "The player should repeat: {value}.",
    ),
    "new-list": add(PLAYLIST, new_list, {}).asked(
        "Make a new list {name}.",
        "Create the list {name} for songs.",
        "I want a list of songs called {name}.",
    ),
    "add": Template(put, hidden=True).asked(
        "Add {title} to the list {name}.",
        "Put the song {title} into {name}.",
        "The list {name} should have {title}.",
    ),
    "remove": delete(TRACK, "remove").asked(
        "Remove {title} from the list {name}.",
        "Take the song {title} out of {name}.",
        "The list {name} should not have {title} any more.",
    ),
    "delete-list": delete(PLAYLIST, "delete", "delete").asked_in_tests(
        "Delete the list {name}.",
        "Remove the list {name} from my music.",
        "I do not need the list {name} any more: delete it.",
    ),
    "like-and-repeat": in_turn(LIKE, REPEATED, BACK).asked(
        "Like {title} and set repeat to {value}.",
        "Set the player to repeat {value}, and like the song {title}.",
        "Two things: like {title}; repeat {value}.",
    ),
    "shuffle-and-add": Template(shuffle_and_add, hidden=True, exhibits=2).asked_in_tests(
        "Turn shuffle {state} and add {title} to the list {name}.",
        "Put {title} into the list {name}, and switch shuffle {state}.",
        "The list {name} should have {title}; shuffle {state}.",
    ),
    "like-two": in_any_order(LIKE, switch(OTHER, "liked", True, "like")).asked(
        "Like the songs {title} and {other}.",
        "Mark {title} and {other} as liked.",
        "I like {title} and {other}: say so for both.",
    ),
    "like-and-shuffle": in_turn(LIKE, SHUFFLE, BACK).asked(
        "Like {title} and turn shuffle {state}.",
        "Switch shuffle {state}, and like the song {title}.",
        "Two things: like {title}; shuffle {state}.",
    ),
    "ask-artist": ask(LISTED, "artist", "text", words.ARTISTS).asked(
        "Who sings {title}?", "Who is the artist of {title}?", "Which artist has the song {title}?"
    ),
    "ask-songs": Template(how_many, "query").asked(
        "How many songs does the list {name} have?",
        "How many songs are in {name}?",
        "Count the songs of the list {name}.",
    ),
    "ask-plays": ask(SONG, "plays").asked(
        "How often was {title} played?", "How many plays has {title}?", "Tell me the plays of {title}."
    ),
    "ask-more": more(SONG, OTHER, "plays").asked(
        "Which song was played more often, {title} or {other}?",
        "Has {title} or {other} more plays?",
        "{title} or {other}: which has more plays?",
    ),
}
