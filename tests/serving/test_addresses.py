"""Fields from which a server could fetch, wherever they stand and however they are spelt."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfverify.serving.addresses import _in_field, refuse_addresses, refuse_any_address, refuse_fields
from selfverify.serving.api_errors import ApiError
from selfverify.serving.serve_settings import GatewaySettings
from serving_servers import Body, FakeUpstream, data_url, png, post, question, served

ADDRESS = "http://169.254.169.254/latest"
IMAGE = {"type": "image_url", "image_url": {"url": data_url(png())}}
SCHEMA = {
    "type": "object",
    "properties": {
        "url": {"type": "string"},
        "image_url": {"$ref": "#/$defs/image"},
        "host": {"type": "string"},
    },
    "$defs": {"image": {"type": "string"}},
    "$schema": "http://json-schema.org/draft-07/schema#",
}
ELSEWHERE = {"type": "object", "properties": {"a": {"$ref": ADDRESS}}}


def asked(path: str, body: Body, **more: Any) -> tuple[int, Body, list[Body]]:
    """Status, reply and what the server has seen."""
    fake = FakeUpstream()
    status, reply = served(fake, lambda session, url, _: post(session, f"{url}/{path}", body), **more)
    return status, reply, fake.seen


@pytest.mark.parametrize(
    ("names", "are"),
    [
        ("url URL Url image_url imageUrl image-url curl API_BASE apiBase hosts remote_host remoteHost", True),
        ("REMOTE_HOST remote-host_ db_hostname some_endpoint someEndpoint kv_transfer_params fileID", True),
        ("ghost hostile endpoints_used temperature paths imagery video_fps urlencode model n user", False),
    ],
)
def test_names(names: str, are: bool) -> None:
    for name in names.split():
        found = []
        with suppress(ApiError):
            refuse_fields({"x": {name: "y"}})
            found = [name]
        assert (not found) == are, name


def function(parameters: Any) -> Body:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ({"api_base": ADDRESS}, "api_base"),
        ({"base_url": ADDRESS}, "base_url"),
        ({"Base_URL": ADDRESS}, "Base_URL"),
        ({"baseUrl": ADDRESS}, "baseUrl"),
        ({"image_url": ADDRESS}, "image_url"),
        ({"image_urls": [ADDRESS]}, "image_urls"),
        ({"image\u017f": [ADDRESS]}, "image\u017f"),  # Go takes this s for an s
        ({"langfuse_host": ADDRESS}, "langfuse_host"),
        ({"tools": [{"type": "mcp", "server_url": ADDRESS}]}, "tools.0.server_url"),
        ({"tools": [{"type": "mcp", "serverURL": ADDRESS}]}, "tools.0.serverURL"),
        ({"tools": [function(ELSEWHERE)]}, "tools.0.function.parameters.properties.a.$ref"),
        ({"guided_json": ELSEWHERE}, "guided_json.properties.a.$ref"),
        ({"guided_json": json.dumps(ELSEWHERE)}, "guided_json"),
        ({"json_schema": json.dumps(ELSEWHERE)}, "json_schema"),
        ({"x": json.loads("[" * 180 + '{"url": 1}' + "]" * 180)}, "x" + ".0" * 99 + "...."),
        ({"kv_transfer_params": {"remote_host": "10.0.0.1"}}, "kv_transfer_params"),
        ({"more": [[{"deep": {"remoteHost": "10.0.0.1"}}]]}, "more.0.0.deep.remoteHost"),
        ({"extra_body": {"api_base": ADDRESS}}, "extra_body.api_base"),
        ({"url": 5}, "url"),
        ({"url": [None]}, "url"),
        ({"x" * 500: {"url": ADDRESS}}, "x" * 199 + "..."),
    ],
)
@pytest.mark.parametrize("model", ["m", "m@plain"])
def test_fields_with_addresses(field: Body, place: str, model: str) -> None:
    status, reply, seen = asked("chat/completions", question(**field) | {"model": model})
    error = reply["error"]
    assert (status, error["code"], error["param"]) == (400, "remote_content_refused", place) and not seen
    assert error["message"].startswith(f"{place}: ")


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{**IMAGE, "Image_URL": {"url": ADDRESS}}]},
        {"content": [{"type": "image_url", "image_url": {"url": data_url(png()), "URL": ADDRESS}}]},
        {"content": [{"type": "tool_result", "role": "user", "content": [IMAGE]}]},
        {"content": [{"type": "video_url", "VIDEO_URL": {"url": ADDRESS}}]},
        {"content": [{"type": "file", "file": {"File_Data": ADDRESS}}]},
        {"content": [{"type": "video_url", "video_url": {"url": "data:IMAGE/png;base64,AA=="}}]},
        {"content": [{"type": "x", "images": ["data:application/octet-stream;base64,AA=="]}]},
        {"content": [{"type": "x", "videos": [["data:video/mp4;base64,AA=="]]}]},
        {"content": "?", "Images": [ADDRESS]},
        {"content": "?", "tool_calls": [{"function": {"name": "f", "url": ADDRESS}}]},
    ],
)
def test_messages_with_addresses(message: Body) -> None:
    body = {"model": "m@plain", "messages": [{"role": "user", **message}]}
    status, reply, seen = asked("chat/completions", body)
    assert (status, reply["error"]["code"]) == (400, "remote_content_refused") and not seen


def test_names_in_schemas_and_arguments_are_no_addresses() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "open", "arguments": {"url": "http://x/"}}}
    fields = {
        "guided_json": SCHEMA,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        "tools": [function(SCHEMA)],
        "functions": [{"name": "f", "parameters": SCHEMA, "returns": SCHEMA}],
        "nvext": {"guided_json": SCHEMA},
        "structured_outputs": {"json": SCHEMA},
        "json_schema": json.dumps(SCHEMA),
        "metadata": {"url": "http://mine/"},
        "base_url": None,
        "images": [],
    }
    body = {
        "model": "m@plain",
        "messages": [{"role": "assistant", "content": "x", "tool_calls": [call]}],
        **fields,
    }
    status, reply, seen = asked("chat/completions", body)
    assert status == 200, reply
    assert {name: seen[0][name] for name in fields} == fields and seen[0]["messages"] == body["messages"]
    body = {"model": "m", "prompt": "7", "guided_json": SCHEMA, "response_format": fields["response_format"]}
    assert asked("completions", body)[0] == 200


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"modality": "image"}, "modality"),
        ({"modality": ["text", "IMAGE"]}, "modality"),
        ({"Modality": "image"}, "Modality"),
        ({"input": "data:image/png;base64,AA=="}, "input"),
        ({"input": ["x", " DATA:;base64,AA=="]}, "input.1"),
        ({"input": ["x", [ADDRESS]]}, "input.1.0"),
        ({"input": "file:///etc/passwd"}, "input"),
        ({"input": [{"image": "AA=="}]}, "input.0.image"),
        ({"input": [{"content": [IMAGE]}]}, "input.0.content.0.image_url"),
        ({"input": {"Image": "AA=="}}, "input.Image"),
        ({"input": [{"x": "data:image/png;base64,AA=="}]}, "input.0.x"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.image_url"),
    ],
)
def test_embeddings_of_what_is_fetched(more: Body, place: str) -> None:
    status, reply, seen = asked("embeddings", {"model": "m", "input": "x", **more})
    error = reply["error"]
    assert (status, error["code"], error["param"]) == (400, "remote_content_refused", place) and not seen


@pytest.mark.parametrize("text", ["see http://x/", "data: 5, 6 pears", [5, 6], None, [None, 5.5, ["x"]], 7])
def test_embeddings_of_texts(text: Any) -> None:
    body = {"model": "m", "input": text, "modality": "text"}
    assert asked("embeddings", body)[0] == 200


@pytest.mark.parametrize("name", ["Model", "MESSAGES", "N", "Max_Tokens", "Stream"])
def test_fields_in_other_letters(name: str) -> None:
    """A server that reads both takes the last one."""
    for path in ("chat/completions", "completions"):
        body = question(prompt="x") | {"model": "m@plain", name: "other"}
        status, reply, seen = asked(path, body)
        assert (status, reply["error"]["code"], reply["error"]["param"]) == (400, "unknown_parameter", name)
        assert not seen and f"is {name.lower()} meant" in reply["error"]["message"]


@pytest.mark.parametrize(
    "field",
    [{"models": ["other"]}, {"route": "fallback"}, {"fallbacks": ["other"]}, {"Models": "other"},
     {"fallbacks": [{"model": "other"}]}, {"lora_path": "other"}, {"extra_body": {"models": ["other"]}}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_no_way_round_the_list_of_models(field: Body, path: str) -> None:
    own: Body = {"chat/completions": question(), "completions": {"prompt": "7"}}[path]
    body = own | {"model": "m@plain", **field}
    [name] = field
    status, reply, seen = asked(path, body, settings=GatewaySettings(models=["m"]))
    error = reply["error"]
    assert (status, error["code"]) == (400, "unsupported_parameter") and error["param"].startswith(name), (
        reply
    )
    assert not seen
    assert asked(path, body)[0] == 200  # where all models are served
    empty = {name: None if isinstance(value, str) else [] for name, value in field.items()}
    assert asked(path, body | empty, settings=GatewaySettings(models=["m"]))[0] == 200


def test_places_are_short() -> None:
    """A long name is not copied for each value below it."""
    long = "x" * 10**6
    found = [place for place, _, _ in _in_field(long, [{long: {"url": 1}}] * 3)]
    assert found == ["x" * 199 + "..."] * 3


NAMES = st.sampled_from(["url", "image_url", "type", "content", "schema", "tools", "$ref", "arguments", ""])
TEXTS = st.sampled_from(["", ADDRESS, "data:", "image_url"])
ODD = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES: Any = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(["messages", "input", "tools", "modality", "guided_json", "x"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(FIELDS, VALUES), st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=3))
def test_odd_values_are_passed_or_refused(body: Body, messages: list[Body]) -> None:
    checks: list[Any] = [(refuse_fields, body), (refuse_any_address, body), (refuse_addresses, messages)]
    for check, value in checks:
        with suppress(ApiError):
            check(value)
