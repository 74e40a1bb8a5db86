"""Questions about songs, lists and the player."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.music_tasks import OPEN, song, songs_of
from selfverify_phone.templates.ways import BACK, Step, either, tap

SHELF = Shelf("music")


@SHELF.query("Who sings {title}?", "Who is the artist of {title}?", "Which artist has the song {title}?")
def ask_artist(world: World) -> Drawn:
    key, title = song(world)
    artist = str(world.get("song", key)["artist"])
    return Drawn(
        {"title": title},
        [Has(kind="song", match={"title": title}, values={"artist": artist})],
        [OPEN, either([tap(f"r{key}")], [Step("see", f"r{key}")])],
        answer=Answer(value=artist, others=tuple(name for name in words.ARTISTS if name != artist)),
    )


@SHELF.query(
    "How many songs does the list {name} have?",
    "How many songs are in {name}?",
    "Count the songs of the list {name}.",
)
def ask_songs(world: World) -> Drawn:
    key = world.pick("playlist")
    name = str(world.get("playlist", key)["name"])
    return Drawn(
        {"name": name},
        [Listed(kind="track", match={"playlist": name})],
        [OPEN, tap("lists"), tap(f"r{key}")],
        answer=Answer(form="number", value=str(len(songs_of(world, name)))),
    )


@SHELF.query("How often was {title} played?", "How many plays has {title}?", "Tell me the plays of {title}.")
def ask_plays(world: World) -> Drawn:
    key, title = song(world)
    plays = int(world.get("song", key)["plays"])
    return Drawn(
        {"title": title},
        [Has(kind="song", match={"title": title}, values={"plays": plays})],
        [OPEN, tap(f"r{key}")],
        answer=Answer(form="number", value=str(plays)),
    )


@SHELF.query(
    "Which song was played more often, {title} or {other}?",
    "Has {title} or {other} more plays?",
    "{title} or {other}: which has more plays?",
    exhibits=2,
)
def ask_more(world: World) -> Drawn:
    (key, title), (second, other) = song(world), song(world)
    plays = {k: int(world.get("song", k)["plays"]) for k in (key, second)}
    names = {key: title, second: other}
    more, less = sorted(plays, key=lambda k: -plays[k])
    return Drawn(
        {"title": title, "other": other},
        [Has(kind="song", match={"title": names[k]}, values={"plays": plays[k]}) for k in plays],
        [OPEN, either([tap(f"r{key}"), BACK, tap(f"r{second}")], [tap(f"r{second}"), BACK, tap(f"r{key}")])],
        answer=Answer(value=names[more], others=(names[less],)),
    )
