"""The phone as an environment: forms of observations, what is refused, and what no agent can break."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from selfverify.agents.facts import listing
from selfverify.agents.tools import Address, ScreenTools
from selfverify.core.episode import Call, StepResult
from selfverify.core.errors import DataError
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment, reset_phone
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.playing import perform
from selfverify_phone.system.device import HOME, Phone, Refused
from selfverify_phone.templates import TEMPLATES
from selfverify_phone.tools import schemas
from tables import put, read_tables, yaml_cases

NAMES = list(TEMPLATES)


def opened(
    name: str = "contacts-add", seed: int = 1, hostile: bool = False, **options: Any
) -> PhoneEnvironment:
    environment = PhoneEnvironment(PhoneConfig(**options))
    asyncio.run(environment.reset({"template": name, "hostile": hostile}, seed))
    return environment


def act(environment: PhoneEnvironment, name: str, **arguments: Any) -> StepResult:
    return asyncio.run(environment.step(Call(name, arguments)))


def launch(environment: PhoneEnvironment, app: str) -> StepResult:
    """Open an app, and put its question away if it has one."""
    seen = act(environment, "launch", app=app)
    return act(environment, "tap", id="later") if seen.info["screen"] == "popup" else seen


def wild(environment: PhoneEnvironment, rng: Random) -> Call:
    """Something that an agent might do, mostly sensible."""
    look = environment.phone.look()
    ids = [widget.id for widget, _ in look.placed if widget.id] or ["x"]
    roll = rng.random()
    if roll < 0.55:
        return Call("tap", {"id": rng.choice(ids)})
    if roll < 0.62:
        return Call("long_press", {"id": rng.choice(ids)})
    if roll < 0.72:
        return Call("swipe", {"direction": rng.choice(["up", "down", "left", "right"])})
    if roll < 0.82:
        return Call("type", {"text_input": rng.choice(["Bob Lee", "7:30", "42", "", "<b>\n", "x" * 300])})
    if roll < 0.88:
        return Call("launch", {"app": rng.choice(list(environment.phone.apps))})
    if roll < 0.93:
        x, y = rng.randrange(-20, 560), rng.randrange(-20, 980)
        return Call(rng.choice(["tap", "long_press"]), {"x1": x, "y1": y, "x2": x, "y2": y})
    junk: list[Call] = [
        Call("back"), Call("home"), Call("enter"), Call("wait", {"seconds": 1}), Call("get_current_xml"),
        Call("submit", {"message": "done"}), Call("tap", {"id": None}), Call("tap", {}), Call("swipe", {}),
        Call("wait", {"seconds": float("nan")}), Call("type", {"text_input": 3}), Call("back", {"now": 1}),
        Call("tap", {"x1": "1", "y1": [], "x2": {}, "y2": True}), Call("launch", {"app": "Nope"}),
    ]  # fmt: skip
    return rng.choice(junk)


def holds(phone: Phone, fact: list[Any], everything: set[tuple[Any, ...]]) -> bool:
    """Whether a fact that a screen shows is one of the state's, or a right count of a list."""
    about = listing(fact[0])
    if about is None or not about.attribute:
        return tuple(fact) in everything
    return sum(about.has(record) is True for record in phone.data[about.kind].values()) == fact[2]


@pytest.mark.parametrize("hostile", [False, True])
def test_random_agents_break_nothing(hostile: bool) -> None:
    rng = Random(0)
    for episode in range(12):
        environment = opened(rng.choice(NAMES), episode, hostile)
        for step in range(80):
            call = wild(environment, rng)
            before = json.dumps(environment.phone.state) if call.name in ("wait", "swipe") else ""
            seen = asyncio.run(environment.step(call))
            phone = environment.phone
            assert seen.round == step + 1
            if call.name == "wait" or (
                call.name == "swipe" and call.arguments.get("direction") in ("up", "down")
            ):
                assert json.loads(before)["data"] == phone.data
            tree = ElementTree.fromstring(seen.text)
            assert tree.tag == "screen"
            assert seen.text.count("\n") == len(tree) + 1
            if step % 5 == 0:
                everything = {tuple(fact) for fact in phone.facts()}
                assert all(holds(phone, fact, everything) for fact in seen.info["facts"])
        for _ in range(40):
            act(environment, "back")
        assert environment.phone.frame["app"] == HOME


def test_the_same_seed_gives_the_same_bytes() -> None:
    def bytes_of(name: str) -> list[bytes]:
        rng, environment = Random(7), opened(name, 3, show="both", address="ids")
        shown = [asyncio.run(environment.step(wild(environment, rng))) for _ in range(6)]
        return [s.text.encode() + s.images[0].tobytes() + json.dumps(s.info).encode() for s in shown]

    for name in NAMES[:: len(NAMES) // 3]:
        assert bytes_of(name) == bytes_of(name)


def test_ids_stay_while_the_list_changes() -> None:
    environment = opened("contacts-delete", 0)
    launch(environment, "contacts")
    one, two = (act(environment, "get_current_xml").text for _ in range(2))
    assert one == two
    phone = environment.phone
    rows = {w.id: w.text for w in phone.look().screen.body}
    victim = next(iter(rows))
    del phone.data["contact"][victim[1:]]
    act(environment, "wait", seconds=0)
    assert {w.id: w.text for w in phone.look().screen.body} == {k: v for k, v in rows.items() if k != victim}


def test_refused_calls_change_nothing() -> None:
    environment = opened()
    first = launch(environment, "contacts")
    for name, arguments, reason in read_tables(Path(__file__).with_suffix(".yaml"))["refused_calls"]:
        seen = act(environment, name, **arguments)
        assert reason in seen.error and seen.text == first.text
    act(environment, "tap", id="add")
    act(environment, "back")
    assert "disabled" in act(environment, "tap", id="save").error


def test_rows_out_of_view_cannot_be_touched() -> None:
    environment = opened("settings-network", 2)
    launch(environment, "settings")
    assert "swipe" in act(environment, "tap", id="about").error
    act(environment, "swipe", direction="up", dist="long")
    assert act(environment, "tap", id="about").error == ""


def test_a_keyboard_hides_rows_and_facts() -> None:
    environment = opened("contacts-phone", 2, first_screen="given")
    phone = environment.phone
    launch(environment, "contacts")
    phone.tap("search")
    phone.type("a")
    free = len(phone.look().facts)
    phone.tap("query")
    assert len(phone.look().facts) < free


def test_the_first_screen_is_asked_for_or_given() -> None:
    async def first(**options: Any) -> StepResult:
        return await PhoneEnvironment(PhoneConfig(**options)).reset({"template": "clock-add"}, 0)

    asked, given = asyncio.run(first()), asyncio.run(first(first_screen="given"))
    assert asked.text == "" and asked.info["facts"] == []
    assert given.text.startswith("<screen") and given.round == 0


def test_forms_of_observations() -> None:
    assert act(opened(text="terse"), "get_current_xml").text.startswith("- Home\n")
    both = act(opened(show="both"), "get_current_xml")
    assert both.text and both.images[0].size == (540, 960)
    picture = act(opened(show="png", address="bounds"), "get_current_xml")
    assert not picture.text and picture.images
    for options in ({"show": "png"}, {"text": "terse", "address": "bounds"}):
        with pytest.raises(ValidationError, match="use address"):
            PhoneConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["ids", "bounds"])
def test_tools_are_those_of_every_screen(address: Address) -> None:
    """Apart from what this phone knows better: its apps, its longest text, a swipe that starts anywhere."""
    ours = {t["function"]["name"]: t["function"] for t in schemas(address, ["clock"])}
    theirs = {t["function"]["name"]: t["function"] for t in ScreenTools(address).schemas}
    assert list(ours) == list(theirs)
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert differing == {"launch", "type"} | ({"swipe"} if address == "ids" else set())
    assert ours["launch"]["parameters"]["properties"]["app"]["enum"] == ["clock"]
    swipe = ours["swipe"]["parameters"]
    assert ("x1" in swipe["properties"]) == (address == "bounds") and "id" not in swipe["properties"]


@pytest.mark.parametrize("address", ["ids", "bounds"])
def test_what_schemas_ask_for_is_what_the_phone_takes(address: Address) -> None:
    for tool in schemas(address, ["clock"]):
        name, parameters = tool["function"]["name"], tool["function"]["parameters"]
        required = parameters.get("required", [])
        _, phone = reset_phone({"free": True}, 0)
        if required:
            with pytest.raises(Refused, match=f"{name} needs"):
                perform(phone, Call(name, {}))
        with pytest.raises(Refused, match=f"{name} does not take 'more'"):
            perform(phone, Call(name, {**dict.fromkeys(parameters["properties"], ""), "more": 1}))


def test_a_task_can_be_given_as_json() -> None:
    task = make_task("contacts-phone", 4)
    data = json.loads(json.dumps(task.record()))

    async def run() -> dict[str, Any] | None:
        environment = PhoneEnvironment()
        await environment.reset({"task": data}, 0)
        assert environment.task.goal == task.goal
        return await environment.state()

    state = asyncio.run(run())
    assert state["state"] == task.phone().state


@yaml_cases
def test_broken_tasks_are_named(place: list[Any], value: Any, reason: str) -> None:
    data = json.loads(json.dumps(make_task("contacts-phone", 4).record()))
    put(data, place, value)
    with pytest.raises(DataError, match=reason):
        asyncio.run(PhoneEnvironment().reset({"task": data}, 0))


def test_what_cannot_be_reset_to() -> None:
    for task, reason in (({}, "one of"), ({"template": "x"}, "no template"), ({"temp": 1}, "temp")):
        with pytest.raises(DataError, match=reason):
            asyncio.run(PhoneEnvironment().reset(task, 0))
    with pytest.raises(DataError, match="not been reset"):
        act(PhoneEnvironment(), "back")


def test_spaces_around_an_id_or_a_typed_text_do_not_count() -> None:
    phone = opened(text="terse")
    assert not act(phone, "launch", app=" clock").error
    assert not act(phone, "tap", id=" add ").error
    assert "- time 18:15" in act(phone, "type", text_input=" 18:15").text
