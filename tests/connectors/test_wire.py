"""Messages of OpenEnv's wire and content blocks: they come back as they were, and garbage is refused."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from data_files import huge_png
from selfverify.connectors import openenv
from selfverify.connectors.content import ContentLimits, from_blocks, from_result, to_blocks
from selfverify.connectors.openenv import observation_data, read_observation
from selfverify.core.episode import StepResult
from selfverify.core.errors import DataError
from tables import yaml_cases
from tiny_environment import TOOLS

LIMITS = ContentLimits(images=3, image_pixels=5_000)
SCALARS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def test_an_image_arrives_as_it_is_seen() -> None:
    """Turned as its file says; what is transparent stays so."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (30, 20)).save(file, "JPEG", exif=exif)
    _, [turned, clear] = from_blocks(
        to_blocks("", [Image.open(file), Image.new("RGBA", (5, 5), (9, 8, 7, 6))]), LIMITS
    )
    assert turned.size == (20, 30) and clear.getpixel((2, 2)) == (9, 8, 7, 6)


def sent(observation: StepResult, tool: str = "add") -> StepResult:
    """The observation after its way over the wire."""
    raw = openenv.encode({"type": "observation", "data": observation_data(observation, tool)})
    kind, data = openenv.decode(raw)
    assert kind == "observation"
    return read_observation(data, observation.round, LIMITS, ours=True)


@settings(max_examples=60, deadline=None)
@given(
    round=st.integers(0, 10**6),
    text=st.text(max_size=30),
    error=st.text(max_size=9),
    done=st.booleans(),
    truncated=st.booleans(),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    info=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
)
def test_an_observation_comes_back_as_it_was(**fields: Any) -> None:
    observation = StepResult(**fields)
    assert sent(observation) == observation and sent(observation, tool="") == observation


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_images_lose_nothing(mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (13, 17, 4), dtype=np.uint8)
    image = Image.fromarray(noise[..., 0].astype(np.uint16) * 250) if mode == "I;16" else None
    image = image or Image.fromarray(noise).convert(mode)
    [back] = sent(StepResult(1, images=[image])).images
    assert back.mode == mode and np.array_equal(np.asarray(back), np.asarray(image))


def test_images_of_other_modes_and_forms_are_read() -> None:
    [back] = sent(StepResult(1, images=[Image.new("CMYK", (4, 3), (10, 20, 30, 0))])).images
    assert back.mode == "RGB" and back.size == (4, 3)
    file = io.BytesIO()
    Image.new("RGB", (6, 5)).save(file, "JPEG")
    block = {"type": "image", "data": base64.b64encode(file.getvalue()).decode(), "mimeType": "image/jpeg"}
    assert from_blocks([block], LIMITS)[1][0].size == (6, 5)


def test_a_refusal_may_be_counted_or_not() -> None:
    for told, due, error in ((3, 3, ""), (3, 3, "no"), (3, 4, "no")):
        data = observation_data(StepResult(told, error=error), "add")
        assert read_observation(data, due, LIMITS, ours=True) == StepResult(told, error=error)
    for told, due, error in (
        (3, 4, ""), (3, 5, "no"), (4, 3, "no"), (True, 1, "no"), (False, 0, "no"), (-1, 0, "no")
    ):  # fmt: skip
        with pytest.raises(DataError, match=f"round {told}, and round {due} is due"):
            read_observation(observation_data(StepResult(told, error=error), "add"), due, LIMITS, ours=True)


def test_what_stock_clients_need_stands_where_they_look() -> None:
    data = observation_data(StepResult(3, "here", truncated=True, reward=0.5), "add")
    assert data["done"] is True and data["reward"] == 0.5
    shown = data["observation"]
    assert shown["tool_name"] == "add" and shown["error"] is None
    assert shown["result"]["content"] == [{"type": "text", "text": "here"}]
    assert data["metadata"] == shown["metadata"] == {"round": 3, "done": False, "truncated": True, "info": {}}


def test_tools_come_back() -> None:
    assert openenv.read_tools(openenv.tools_data(TOOLS)["observation"]["tools"]) == TOOLS
    assert openenv.read_tools([openenv.mcp_tool(tool) for tool in TOOLS]) == TOOLS
    assert openenv.read_reset({"goal": 3}) == ({"goal": 3}, 0)


def foreign(observation: Any, **more: Any) -> StepResult:
    return read_observation({"observation": observation, **more}, 4, LIMITS, ours=False)


def test_observations_of_other_servers_are_read() -> None:
    """Without rounds and blocks: a result of any kind, fields of any name, images as data URLs."""
    assert foreign({"tool_name": "t", "result": "as text"}).text == "as text"
    assert foreign({"tool_name": "t", "result": {"a": [1, None]}}).text == '{"a":[1,null]}'
    assert foreign({"stdout": "hi", "exit_code": 0}, reward=1, done=True) == StepResult(
        4, '{"stdout":"hi","exit_code":0}', reward=1.0, done=True
    )
    assert foreign({}).text == "" and foreign({"result": None}).text == ""
    theirs = {"round": 9, "truncated": "no", "done": True, "info": 3}
    assert foreign({"x": 1, "metadata": theirs}) == StepResult(4, '{"x":1}', info=theirs)
    shown: dict[str, Any] = {"content": [], "structuredContent": {"a": 1}}
    assert foreign({"result": shown}).text == '{"a":1}'
    assert foreign({"result": shown | {"content": [{"type": "text", "text": "one"}]}}).text == "one"
    for unshown in (
        None,
        [{"type": "text", "text": " "}],
        [{"type": "audio"}, {"type": "new"}],
        [{"type": "resource_link", "uri": "file:///a"}, {"type": "resource", "resource": {"blob": "aGk="}}],
    ):
        assert from_result(shown | {"content": unshown}, LIMITS) == ('{"a":1}', [])
    failed = foreign({"result": {"content": [{"type": "text", "text": "no such file"}], "isError": True}})
    assert (failed.text, failed.error) == ("", "no such file")
    assert (
        foreign({"error": {"error_type": "invalid_args", "message": "x is missing"}}).error == "x is missing"
    )
    [block] = to_blocks("", [Image.new("L", (3, 2))])
    lines = f"{block['data'][:9]}\r\n{block['data'][9:]}\n"
    for head in ("data:image/png;base64,", "DATA:Image/PNG;charset=x;Base64,"):
        seen = foreign({"screen": head + lines, "url": "a"})
        assert seen.text == '{"url":"a"}' and seen.images[0].size == (3, 2)


@yaml_cases
def test_observations_that_are_none_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_observation(data, 4, LIMITS, ours=True)


def test_a_reward_beyond_all_floats_is_refused() -> None:
    with pytest.raises(DataError, match="reward"):
        read_observation(
            {"observation": {}, "metadata": {"round": 4}, "reward": 10**400}, 4, LIMITS, ours=True
        )


def test_half_a_surrogate_pair_spoils_no_message() -> None:
    """JSON can hold it, and text cannot; whole pairs stay."""
    assert openenv.decode_object(r'{"a": "4 \ud83d", "b\ude00": "\ud83d\ude00"}') == {
        "a": "4 \ufffd",
        "b\ufffd": "😀",
    }
    shown = observation_data(StepResult(0, "4 \ud83d 😀", error="\ude00"))
    assert foreign(json.loads(openenv.encode(shown))["observation"]).error == "?"
    assert '"4 ? 😀"' in openenv.encode(shown)
    with pytest.raises(DataError, match="cannot be written as JSON"):
        openenv.encode({"a": "\ud83d", "b": object()})


def test_messages_and_requests_that_are_none_are_refused() -> None:
    broken = ("", "{", "[]", "7", '"x"', "{}", '{"type": 7}', '{"type": "step", "data": []}', "[" * 10_000)
    call = {"type": "call_tool"}
    calls = [{}, call, call | {"tool_name": "a", "arguments": []}, {"number": 3}]
    for read, refused, message in (
        (openenv.decode, [*broken, b"\xff"], None),
        (openenv.read_call, calls, "call_tool"),
        (openenv.read_reset, [{"seed": seed} for seed in ("3", True, 1.5)], "seed"),
        (openenv.read_submission, [{}, {"message": 3}, {"text": "x"}], "submitted"),
        (openenv.read_tools, [None, {}, ["a"], [{"description": "without a name"}]], "tools"),
    ):
        for data in refused:
            with pytest.raises(DataError, match=message):
                read(data)  # type: ignore[operator]
    with pytest.raises(DataError, match="reward is no finite number: inf"):
        observation_data(StepResult(0, reward=float("inf")))


def bomb(width: int, height: int) -> str:
    """A PNG of a few bytes whose header promises many pixels."""
    return base64.b64encode(huge_png(width, height)).decode()


def test_images_that_are_bombs_are_not_decoded() -> None:
    for size in ((100, 51), (60_000, 60_000)):
        with pytest.raises(DataError, match=r"pixels|exceeds limit"):
            from_blocks([{"type": "image", "data": bomb(*size)}], LIMITS)
    with pytest.raises(DataError, match="block 0: the image cannot be read"):
        from_blocks([{"type": "image", "data": bomb(50, 50)}], LIMITS)  # cut off inside
    with pytest.raises(DataError, match="more than 3 images"):
        from_blocks(to_blocks("", [Image.new("L", (1, 1))] * 4), LIMITS)


def test_what_cannot_be_shown_leaves_a_note() -> None:
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "audio", "data": "", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "x", "text": "b"}},
        {"type": "image", "data": "PHN2Zy8+", "mimeType": "image/svg+xml"},
        {"type": "resource", "resource": {"uri": "x", "blob": "PHN2Zy8+", "mimeType": "image/svg+xml"}},
    ]
    audio, image, resource = (
        f"(a block of type {kind}, which cannot be shown)" for kind in ("audio", "image", "resource")
    )
    assert from_blocks(blocks, LIMITS) == ("\n".join(["a", audio, "b", image, resource]), [])


def test_pictures_are_shown_however_they_are_embedded() -> None:
    [block] = to_blocks("", [Image.new("L", (3, 2))])
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "WEBP")
    png, webp = (
        {"uri": f"file:///a.{kind}", "mimeType": f"image/{kind}", "blob": data}
        for kind, data in (("png", block["data"]), ("webp", base64.b64encode(file.getvalue()).decode()))
    )
    for other in (
        {"type": "resource", "resource": png},
        {"type": "resource", "resource": webp},
        block | {"mimeType": "image/jpg"},
        block | {"data": f"data:image/png;base64,{block['data']}"},
    ):
        text, images = from_blocks([other], LIMITS)
        assert text == "" and [image.size for image in images] == [(3, 2)]
