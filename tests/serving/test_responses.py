"""OpenAI's Responses API before our gateway, asked with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from selfverify.policy.policy import Policy
from selfverify.serving.app import Gateway
from selfverify.serving.counters import Metrics
from selfverify.serving.local import Local
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.server import start
from serving_servers import (
    Body,
    FakeUpstream,
    Loop,
    data_url,
    open_upstream,
    png,
    post,
    quick_gateway,
    tagged,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
"""Events as OpenAI publishes them."""

CALL = {"id": "call_1", "type": "function", "function": {"name": "tap", "arguments": '{"x": 1}'}}
CUSTOM = {"id": "call_2", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
SAID = {"role": "assistant", "content": "Right.", "reasoning_content": "hm", "tool_calls": [CALL, CUSTOM]}


class Says(FakeUpstream):
    """Says these choices, or these chunks."""

    def __init__(self, message: Body, chunks: list[Body] | None = None, finish: str = "stop") -> None:
        super().__init__()
        self.message, self.chunks, self.finish = message, chunks or [], finish

    async def _chat(self, request: Any, body: Body) -> web.StreamResponse:
        usage = {"prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
        if body.get("stream"):
            parts = [json.dumps({"choices": [{"index": 0, **chunk}]}) for chunk in self.chunks]
            parts += [json.dumps({"choices": [], "usage": usage}), "[DONE]"]
            text = "".join(f"data: {part}\n\n" for part in parts)
            return web.Response(body=text.encode(), content_type="text/event-stream")
        choice = {"index": 0, "message": self.message, "finish_reason": self.finish}
        return web.json_response({"choices": [choice], "usage": usage, "service_tier": "flex"})


Open = Callable[..., openai.OpenAI]


@pytest.fixture
def before(servers: Loop) -> Iterator[Open]:
    """Makes a client of a gateway before a server."""
    clients = []

    def opened(fake: FakeUpstream, settings: GatewaySettings | None = None, **more: Any) -> openai.OpenAI:
        address, _ = servers.before(fake, settings, **more)
        clients.append(openai.OpenAI(base_url=address, api_key="none", max_retries=0))
        return clients[-1]

    yield opened
    for client in clients:
        client.close()


def checked(response: Response) -> Response:
    """As it is, if it has OpenAI's form."""
    return Response.model_validate(response.model_dump(mode="json", by_alias=True))


def test_an_answer_is_chosen(before: Open) -> None:
    fake = FakeUpstream(write=lambda body, i: tagged("9" if i else "8", f"0.{i + 1}"))
    client = before(fake)
    response = client.responses.create(
        model="m", input="7+2?", instructions="Be brief.", temperature=0.5, max_output_tokens=50,
        metadata={"a": "b"}, extra_body={"best_of": {"n": 3, "content": "answer"}, "seed": 1},
    )  # fmt: skip
    assert response.output_text == "9" and response.status == "completed" and response.store is False
    [message] = checked(response).output
    assert message.type == "message" and message.role == "assistant" and message.status == "completed"
    assert response.id.startswith("resp_") and response.model == "m" and response.metadata == {"a": "b"}
    assert response.verification["votes"] == 2  # type: ignore[attr-defined]
    assert response.best_of["samples_used"] == 3  # type: ignore[attr-defined]
    usage = response.usage
    assert usage is not None and (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 21, 31)
    [sent] = fake.seen
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent["messages"][1]["content"].startswith("7+2?") and "<score>" in sent["messages"][1]["content"]
    assert (sent["max_completion_tokens"], sent["temperature"], sent["seed"]) == (50, 0.5, 1)
    assert not {"input", "instructions", "metadata", "best_of", "max_output_tokens"} & sent.keys()


def test_the_suffix_chooses_too_and_plain_does_not(before: Open) -> None:
    fake = FakeUpstream(write=lambda body, i: tagged("9"))
    client = before(fake)
    assert client.responses.create(model="m@bo2", input="x").best_of["samples_used"] == 2  # type: ignore[attr-defined]
    plain = client.responses.create(model="m@plain", input="x")
    assert plain.output_text == tagged("9") and not {"best_of", "verification"} & plain.model_dump().keys()
    assert fake.seen[-1]["messages"] == [{"role": "user", "content": "x"}]


def test_images_and_conversations(before: Open) -> None:
    fake, url = FakeUpstream(), data_url(png())
    before(fake).responses.create(
        model="m@plain",
        input=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What?"},
                    {"type": "input_image", "image_url": url, "detail": "low"},
                ],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
            {
                "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "I tap.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "call_1", "name": "tap", "arguments": '{"x": 1}'},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "sql", "input": "select 1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "done"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "1"},
        ],
    )  # fmt: skip
    assert fake.seen[0]["messages"] == [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
            ],
        },
        {"role": "assistant", "content": "I tap.", "tool_calls": [CALL, CUSTOM]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        {"role": "tool", "tool_call_id": "call_2", "content": "1"},
    ]


def test_tools_and_formats_are_passed_through(before: Open) -> None:
    fake = Says(SAID, finish="tool_calls")
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    schema = {"type": "json_schema", "name": "n", "schema": parameters, "strict": True}
    request: Any = {
        "model": "m",
        "input": "Tap.",
        "tools": [
            {"type": "function", "name": "tap", "parameters": parameters, "strict": True},
            {"type": "custom", "name": "sql", "format": grammar},
        ],
        "tool_choice": {"type": "function", "name": "tap"},
        "parallel_tool_calls": False,
        "text": {"format": schema, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "top_logprobs": 2,
        "extra_body": {"best_of": {"n": 1}, "top_k": 5},
    }
    response = checked(before(fake).responses.create(**request))
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call"]
    _, message, call, custom = response.output
    assert message.type == "message" and response.output_text == "Right."
    assert call.type == "function_call" and (call.name, call.arguments) == ("tap", '{"x": 1}')
    assert call.call_id == "call_1" and custom.type == "custom_tool_call" and custom.input == "select 1"
    assert (
        response.service_tier == "flex"
        and response.usage
        and response.usage.input_tokens_details.cached_tokens == 4
    )
    [sent] = fake.seen
    assert sent["tools"] == [
        {"type": "function", "function": {"name": "tap", "parameters": parameters, "strict": True}},
        {
            "type": "custom",
            "custom": {
                "name": "sql",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}},
            },
        },
    ]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "tap"}}
    inner = {"name": "n", "schema": parameters, "strict": True}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": inner}
    assert (sent["verbosity"], sent["reasoning_effort"], sent["top_k"]) == ("low", "low", 5)
    assert (sent["logprobs"], sent["top_logprobs"], sent["parallel_tool_calls"]) == (True, 2, False)


class Sum(BaseModel):
    total: int


def test_a_parsed_answer(before: Open) -> None:
    client = before(Says({"role": "assistant", "content": '{"total": 9}'}))
    parsed = client.responses.parse(model="m", input="7+2?", text_format=Sum).output_parsed
    assert parsed is not None and parsed.total == 9


def test_an_answer_that_is_cut_off_is_incomplete(before: Open) -> None:
    response = before(Says({"role": "assistant", "content": "1 2"}, finish="length")).responses.create(
        model="m", input="Count."
    )
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens" and response.output_text == "1 2"


def test_an_answer_that_is_withheld_is_a_refusal(before: Open) -> None:
    response = before(FakeUpstream(write=lambda body, i: tagged("9", "0.1"))).responses.create(
        model="m", input="x", extra_body={"best_of": {"n": 2, "abstain_below": 0.9, "strategy": "best"}}
    )
    [message] = response.output
    assert message.type == "message" and message.content[0].type == "refusal" and not response.output_text


def events_of(client: openai.OpenAI, **request: Any) -> list[Any]:
    """The events of a stream, each in OpenAI's form and in order."""
    events = list(client.responses.create(stream=True, **request))
    found = [EVENT.validate_python(event.model_dump(mode="json", by_alias=True)) for event in events]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert [event.type for event in found[:2]] == ["response.created", "response.in_progress"]
    assert found[0].response.status == "in_progress" and found[0].response.output == []
    return found


def test_a_stream(before: Open) -> None:
    answer = "one two three four five six seven eight nine ten"
    client = before(FakeUpstream(write=lambda body, i: tagged(answer, "0.8")))
    best = {"n": 2, "content": "answer"}
    events = events_of(client, model="m", input="x", extra_body={"best_of": best})
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer and len(deltas) > 1
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1].response
    assert last.output_text == answer and last.usage.output_tokens == 14 and last.best_of["samples_used"] == 2
    with client.responses.stream(model="m", input="x", extra_body={"best_of": best}) as stream:
        assert stream.get_final_response().output_text == answer


def test_tools_in_a_stream(before: Open) -> None:
    client = before(Says(SAID, finish="tool_calls"))
    events = events_of(client, model="m", input="x", extra_body={"best_of": {"n": 1, "timeout_s": None}})
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.type for item in done] == ["reasoning", "message", "function_call", "custom_tool_call"]
    [arguments] = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert (
        arguments.arguments == '{"x": 1}' and arguments.item_id == done[2].id and arguments.output_index == 2
    )
    assert events[-1].response.output == done


CHUNKS: list[Body] = [
    {"delta": {"role": "assistant", "reasoning_content": "h"}},
    {"delta": {"reasoning_content": "m"}},
    {"delta": {"content": "Ri"}},
    {"delta": {"content": "ght."}},
    {"delta": {"tool_calls": [{"index": 0, **CALL}]}},
    {"delta": {}, "finish_reason": "tool_calls"},
]


def test_without_selection_a_stream_comes_as_it_is_written(before: Open) -> None:
    fake = Says({}, CHUNKS)
    events = events_of(before(fake), model="m@plain", input="x")
    deltas = [event.delta for event in events if event.type.endswith("text.delta")]
    assert deltas == ["h", "m", "Ri", "ght."]
    last = events[-1].response
    assert last.status == "completed" and last.output_text == "Right." and last.usage.output_tokens == 7
    assert [item.type for item in last.output] == ["reasoning", "message", "function_call"]
    assert fake.seen[0]["stream"] is True and "best_of" not in last.model_dump()


def test_a_stream_that_breaks_off_fails(before: Open) -> None:
    class Broken(Says):
        async def _chat(self, request: Any, body: Body) -> web.StreamResponse:
            text = 'data: {"choices": [{"index": 0, "delta": {"content": "Ri"}}]}\n\n'
            return web.Response(body=text.encode(), content_type="text/event-stream")

    events = events_of(before(Broken({})), model="m@plain", input="x")
    last = events[-1]
    assert last.type == "response.failed" and last.response.error.code == "server_error"
    assert last.response.status == "failed" and last.response.output[0].status == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["m", "m@plain"])
def test_faults_have_their_types(before: Open, stream: bool, model: str) -> None:
    client = before(FakeUpstream(fault=lambda body: 429))
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model=model, input="x", stream=stream)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=model.replace("m", "other", 1), input="x", stream=stream)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "the whole conversation"),
        ({"store": True}, "store", "not kept here"),
        ({"background": True}, "background", "not kept here"),
        ({"conversation": "conv_1"}, "conversation", "not kept here"),
        ({"prompt": {"id": "p"}}, "prompt", "no prompts are kept"),
        ({"truncation": "auto"}, "truncation", "only `disabled`"),
        ({"include": ["everything"]}, "include.0", "no 'everything'"),
        ({"input": None}, "input", "a text or a list"),
        ({"input": []}, "input", "a text or a list"),
        ({"input": ["x"]}, "input.0", "an item is an object"),
        ({"input": [{"type": "reasoning"}]}, "input", "no message"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", "send the item itself"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type", "'computer_call'"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role", "'robot'"),
        ({"input": [{"role": "user", "content": 7}]}, "input.0.content", "a list of parts"),
        ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "input.0.content.0", "'video'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
         "input.0.content.0", "not kept or fetched"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://10.0.0.1"}]}]},
         "input.0.content.0", "not kept or fetched"),
        ({"instructions": "y", "input": [{"role": "user", "content": [
            {"type": "input_file", "file_data": "http://10.0.0.1"}]}]},
         "input.0.content.0.file.file_data", "only images"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://10.0.0.1"}]}]},
         "input", "not fetched"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id", "a text"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "does not run here"),
        ({"tools": [{"type": "function"}]}, "tools.0.name", "a text"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "neither function"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "'xml'"),
        ({"max_output_token": 5}, "max_output_token", "is max_output_tokens meant"),
        ({"max_tokens": 5}, "max_tokens", "called max_output_tokens"),
        ({"n": 2}, "n", "called best_of.n"),
        ({"temperature": 3}, "temperature", "less than or equal"),
        ({"best_of": {"n": 65}}, "best_of.n", "at most 64"),
        ({"stop": [1] * 20}, "stop", "at most 16"),
    ],
)  # fmt: skip
def test_what_is_refused(servers: Loop, fields: Body, param: str, words: str) -> None:
    fake = FakeUpstream()
    address, _ = servers.before(fake)

    async def ask() -> tuple[int, Body]:
        async with aiohttp.ClientSession() as session:
            return await post(session, f"{address}/responses", {"model": "m", "input": "x", **fields})

    status, reply = servers.run(ask())
    error = reply["error"]
    assert status == 400 and error["param"].startswith(param) and words in error["message"], reply
    assert not fake.seen


def test_nothing_is_kept(before: Open) -> None:
    client = before(FakeUpstream())
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not kept here"):
            ask("resp_1")


def test_a_client_that_leaves_ends_the_calls(before: Open) -> None:
    fake = FakeUpstream(delay_s=30)
    client = before(fake).with_options(timeout=0.3)
    for model in ("m", "m@plain"):
        for stream in (False, True):
            with pytest.raises(openai.APITimeoutError):
                client.responses.create(model=model, input="x", stream=stream)
    for _ in range(500):
        if not fake.open:
            break
        time.sleep(0.01)
    assert not fake.open and fake.left == len(fake.seen) == 4


def test_the_list_of_models_holds(before: Open) -> None:
    client = before(FakeUpstream(), GatewaySettings(models=["other"]))
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(model="m", input="x")
    assert refused.value.code == "model_not_found"


def test_an_own_model(policy: Policy) -> None:
    async def main() -> tuple[Any, list[Any], str]:
        async with AsyncExitStack() as stack:
            gateway = Gateway(Local(policy, "tiny"), GatewaySettings(), metrics=Metrics())
            port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
            client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
            await stack.enter_async_context(client)
            part: Any = [{"type": "input_image", "image_url": data_url(png()), "detail": "auto"}]
            asked: Any = {
                "model": "tiny",
                "input": [{"role": "user", "content": part}],
                "max_output_tokens": 8,
                "extra_body": {"seed": 0},
            }
            chosen = await client.responses.create(**asked | {"extra_body": {"seed": 0, "best_of": {"n": 2}}})
            stream = await client.responses.create(**asked | {"model": "tiny@plain"}, stream=True)
            events = [event async for event in stream]
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(**asked, tools=[{"type": "function", "name": "f"}])
            return chosen, events, str(refused.value.param)

    chosen, events, param = asyncio.run(main())
    assert chosen.best_of["samples_used"] == 2 and param == "tools"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text and text


def test_no_address_reaches_a_server() -> None:
    """An image that is fetched by the gateway is sent as data; anything else with an address is refused."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            fake = FakeUpstream()
            gateway = quick_gateway(await open_upstream(fake, stack))
            port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            url = f"http://127.0.0.1:{port}/v1/responses"
            for output in ([{"type": "input_image", "image_url": "http://10.0.0.1/x"}],
                           [{"type": "input_file", "file_data": "file:///etc/passwd"}]):  # fmt: skip
                item = {"type": "function_call_output", "call_id": "c", "output": output}
                status, _ = await post(session, url, {"model": "m", "input": [item]})
                assert status == 400 and not fake.seen

    asyncio.run(main())
