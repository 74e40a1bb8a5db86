"""OpenEnv's wire: JSON messages between an environment's client and server, and our client of it.

One WebSocket is one session. The client speaks first, and each message has one reply:

========= =========================================================== =============================
type      data of the request                                         type and data of the reply
========= =========================================================== =============================
reset     the task's fields and ``seed``                              ``observation``
step      ``{type: list_tools}``                                      ``observation`` with ``tools``
step      ``{type: call_tool, tool_name, arguments}``                 ``observation``
state     none                                                        ``state``: the ground truth
submitted ``{message}``, see `Environment.submitted`; ours            ``submitted``: empty
mcp       a request in JSON-RPC: ``tools/list`` or ``tools/call``     ``mcp``: its response
close     none                                                        none; the session ends
========= =========================================================== =============================

Any request may be answered with ``error``, whose data is ``{message, code}``. `observation_data` says what
the data of an observation is. Results of tools stand in content blocks of the Model Context Protocol:
texts, and images in base64.

The protocol does not know ``submitted``. A server that does says so where it lists its tools: ``metadata``
has ``{"hears": ["submitted"]}``. No other server is ever sent one.

Written after huggingface/OpenEnv, versions 0.3 and 0.10, without its code and without need of its package.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from PIL import Image
from pydantic_core import to_json

from selfverify.clients.replies import decoded, encoded
from selfverify.connectors.content import ContentLimits, from_data_urls, from_result, to_blocks
from selfverify.core.config import checked_address
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import DataError, needs

with needs("servers need more", "serve"):
    import aiohttp
    from yarl import URL


INVALID_JSON = "INVALID_JSON"
UNKNOWN_TYPE = "UNKNOWN_TYPE"
VALIDATION_ERROR = "VALIDATION_ERROR"
"""The request cannot be carried out: there is no such task, or the arguments do not fit."""
CAPACITY_REACHED = "CAPACITY_REACHED"
SESSION_ERROR = "SESSION_ERROR"

SUBMITTED = "submitted"


def encode(message: Mapping[str, Any]) -> str:
    """Return a message as JSON.

    Raises:
        DataError: Something in it is no JSON value.
    """
    try:
        return encoded(message).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"the message cannot be written as JSON: {error}") from None


def decode(raw: str | bytes) -> tuple[str, dict[str, Any]]:
    """Return the type and the data of a message, request or reply.

    Raises:
        DataError: It is no message.
    """
    found = decode_object(raw)
    if not isinstance(found.get("type"), str):
        raise DataError("a message is an object with a type")
    data = found.get("data")
    if data is not None and not isinstance(data, dict):
        raise DataError(f"the data of a message of type {found['type'][:40]!r} is no object")
    return found["type"], data or {}


def decode_object(raw: str | bytes) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        DataError: It is none.
    """
    try:
        found = decoded(raw)
    except ValueError as error:
        raise DataError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"no JSON object, but {type(found).__name__}")
    return found


async def read_object(reply: aiohttp.ClientResponse, most: int) -> dict[str, Any]:
    """Return the JSON object that a server answers.

    Raises:
        DataError: It is none, or larger than ``most`` bytes; or the status is no 200.
    """
    try:
        await reply.content.readexactly(most + 1)
    except asyncio.IncompleteReadError as error:
        raw = error.partial
    else:
        raise DataError(f"it is larger than {most:,} bytes")
    if reply.status != 200:
        raise DataError(f"it answered {reply.status}: {raw[:200].decode('utf-8', 'replace')}")
    return await asyncio.to_thread(decode_object, raw)


def read_reset(data: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the task and the seed of a request; a client that sends no seed gets 0.

    Raises:
        DataError: The seed is no number.
    """
    seed = 0 if data.get("seed") is None else data["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise DataError("seed is no integer")
    return {name: value for name, value in data.items() if name != "seed"}, seed


def read_call(data: Mapping[str, Any]) -> Call | None:
    """Return the call in the data of a step; None where tools are asked for.

    Raises:
        DataError: It is neither.
    """
    match data:
        case {"type": "list_tools"}:
            return None
        case {"type": "call_tool", "tool_name": str(name)} if isinstance(data.get("arguments", {}), dict):
            return Call(name, data.get("arguments", {}))
    raise DataError(
        "the data of a step is {'type': 'call_tool', 'tool_name': NAME, 'arguments': {...}} "
        "or {'type': 'list_tools'}"
    )


def read_submission(data: Mapping[str, Any]) -> str:
    """Return the message in the data of such a request.

    Raises:
        DataError: There is none.
    """
    message = data.get("message")
    if not isinstance(message, str):
        raise DataError("the data of 'submitted' is {'message': TEXT}")
    return message


def error_message(message: str, code: str) -> str:
    """Return the reply to what cannot be answered."""
    return encode({"type": "error", "data": {"message": message, "code": code}})


def tools_data(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of the reply that lists tools."""
    shown = [mcp_tool(tool, "input_schema") for tool in tools]
    metadata = {"hears": [SUBMITTED]}
    return {"observation": {"tools": shown, "metadata": metadata}, "reward": None, "done": False}


def mcp_tool(tool: Mapping[str, Any], schema: str = "inputSchema") -> dict[str, Any]:
    """Return a tool in OpenAI's form as MCP writes it; ``schema`` names the field of its parameters."""
    function = tool["function"]
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        schema: function.get("parameters") or {"type": "object", "properties": {}},
    }


def read_tools(tools: object) -> list[dict[str, Any]]:
    """Return a list of MCP's tools in OpenAI's form.

    Raises:
        DataError: It is no list of tools.
    """
    found = []
    for tool in tools if isinstance(tools, list) else [None]:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise DataError("this is no list of tools")
        schema = tool.get("input_schema", tool.get("inputSchema"))
        function = {
            "name": tool["name"],
            "description": str(tool.get("description") or ""),
            "parameters": schema if isinstance(schema, dict) else {"type": "object", "properties": {}},
        }
        found.append({"type": "function", "function": function})
    return found


_LOST = frozenset({"timeout", "transport_error"})
"""Types of a tool's error after which nothing is known of the environment."""


def observation_data(observation: StepResult, tool: str = "") -> dict[str, Any]:
    """Return the data of a reply that shows an observation.

    It has the fields ``observation``, ``reward``, ``done`` and ``metadata``; ``observation`` is
    ``{tool_name, result: {content, is_error}, error, metadata}``. Text and images stand in ``content``
    (`to_blocks`). The protocol has no field for the round, for ``truncated`` and for ``info``; they stand in
    ``metadata``, which the protocol leaves to environments. There ``done`` is the task's own end. The
    protocol's ``done`` is also true after ``truncated``, since its clients go on until it is.

    Args:
        observation: The observation.
        tool: The tool that was called; empty after a reset.

    Raises:
        DataError: The reward is no finite number.
    """
    reward = read_reward(observation.reward)
    ended = {"done": observation.done, "truncated": observation.truncated}
    metadata = {"round": observation.round, **ended, "info": observation.info}
    error = {"error_type": "execution_error", "message": observation.error} if observation.error else None
    shown = {
        **({"tool_name": tool} if tool else {}),
        "result": {
            "content": to_blocks(observation.text, observation.images),
            "is_error": bool(observation.error),
        },
        "error": error,
        "metadata": metadata,
    }
    done = observation.done or observation.truncated
    return {"observation": shown, "reward": reward, "done": done, "metadata": metadata}


def read_observation(data: Mapping[str, Any], due: int, limits: ContentLimits, ours: bool) -> StepResult:
    """Return the observation of a reply, of our server or another.

    Args:
        data: The reply's data.
        due: The round that the observation must have, or the one before where the call was refused and not
            counted. A server of ours that counts otherwise has lost its session.
        limits: Limits of its content.
        ours: Whether the server is one of ours; ``metadata`` of others is all theirs, and becomes ``info``.

    Raises:
        DataError: It is no observation, or none of the round that is due.
    """
    shown = data.get("observation")
    if not isinstance(shown, dict):
        raise DataError("there is no observation")
    metadata = data.get("metadata") or shown.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise DataError("metadata is no object")
    if not ours:
        metadata = {"round": due, "done": data.get("done"), "info": metadata}
    text, images = _shown(shown, limits)
    error = _error(shown)
    result = shown.get("result")
    if not error and isinstance(result, dict) and (result.get("is_error") or result.get("isError")):
        text, error = "", text or "the tool has failed"
    told, info = metadata.get("round"), metadata.get("info")
    # True and 1.0 are equal to 1, and are no numbers of rounds.
    if type(told) is not int or (told != due and not (error and 0 <= told == due - 1)):
        raise DataError(f"the observation is of round {str(told)[:20]}, and round {due} is due")
    flags = {name: _flag(metadata, name) for name in ("done", "truncated")}
    info = info if isinstance(info, dict) else {}
    return StepResult(told, text, images, error, **flags, reward=read_reward(data.get("reward")), info=info)


def _shown(shown: Mapping[str, Any], limits: ContentLimits) -> tuple[str, list[Image.Image]]:
    """The text and the images of an observation; what is in no blocks becomes JSON."""
    other = ("tool_name", "error", "metadata", "done", "reward")
    fields = {name: value for name, value in shown.items() if name not in other}
    result = fields.get("result") if "result" in fields else fields
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        return from_result(result, limits)
    images: list[Image.Image] = []
    if isinstance(result, dict):
        result, images = from_data_urls(result, limits)
    if isinstance(result, str):
        return result, images
    return ("" if result is None or result == {} else to_json(result).decode()), images


def _error(shown: Mapping[str, Any]) -> str:
    match shown.get("error"):
        case None | "":
            return ""
        case {"error_type": str(kind), "message": message} if kind in _LOST:
            raise DataError(f"the tool's error is {kind}: {str(message)[:200]}")
        case {"message": message}:
            return str(message) or "the tool has failed"
        case other:
            return str(other)


def _flag(metadata: Mapping[str, Any], name: str) -> bool:
    value = metadata.get(name)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{name} is neither true nor false")
    return bool(value)


def read_reward(value: object) -> float | None:
    """Return a reward as an environment or a server gave it; None where nothing was scored.

    Raises:
        DataError: It is no finite number.
    """
    if value is None:
        return None
    try:
        reward = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise DataError(f"the reward is no finite number: {str(value)[:40]}")
    return reward


KEY_VARIABLE = "SELFVERIFY_ENVIRONMENT_KEY"
"""Environment variable with the key that is sent to servers of environments."""


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """Where a server of environments is, and how patient to be.

    Args:
        url: The server's address, such as ``http://127.0.0.1:8000`` or ``http://host:8000/phone``.
        key: The key that is sent; None sends none.
        actions: ``tools`` for environments whose actions are calls of tools, ``plain`` for those with one
            kind of action, which then is the only tool: ``step``, with the action's fields as arguments.
        connect_s: Seconds that connecting may take.
        reset_s: Seconds that a reset may take.
        act_s: Seconds that a call, or reading the state, may take.
        health_s: Seconds that a check of the server's health may take.
        limits: Limits of the server's content.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    actions: Literal["tools", "plain"] = "tools"
    connect_s: float = 10.0
    reset_s: float = 300.0
    act_s: float = 60.0
    health_s: float = 10.0
    limits: ContentLimits = field(default_factory=ContentLimits)


class Refused(Exception):
    """A server has refused what was asked, and its session goes on."""


class RemoteSession(Environment):
    """A session that a server keeps.

    A session that was broken off is lost. It is never taken up again in the middle: it is not known what its
    server has done meanwhile. So every failure on the way raises `EnvironmentLost`, and so does every later
    call. An agent's mistake stands in the observation's ``error``.

    Args:
        name: The server's name in messages: its address, without a key, or its command.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tools: list[dict[str, Any]] | None = None
        self._lost, self._round = "", -1

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """The server's tools, known once `open` has asked for them."""
        if self._tools is None:
            raise DataError(f"{self.name}: its tools are known after open() or reset()")
        return self._tools

    async def open(self) -> None:
        """Connect and ask for the tools, where that comes before a reset; does nothing on an open session.

        Raises:
            EnvironmentLost: The server cannot be reached, has no room, refuses the key, or is none.
        """
        self._check_kept()

    async def close(self) -> None:
        await self._drop("the session is closed")

    @abstractmethod
    async def _cut(self) -> None:
        """Cut the connection, if there is one."""

    def _check_kept(self) -> None:
        if self._lost:
            raise EnvironmentLost(self._lost)

    def _check_begun(self) -> None:
        self._check_kept()
        if self._round < 0:
            raise DataError(f"{self.name}: reset comes before the first call")

    @asynccontextmanager
    async def _within(self, limit_s: float | None, what: str) -> AsyncIterator[None]:
        """Lose the session if what is done inside fails, takes longer than ``limit_s``, or is broken off."""
        try:
            async with asyncio.timeout(limit_s):
                yield
        except (EnvironmentLost, Refused):
            raise
        except TimeoutError:
            await self._lose(f"{what} took longer than {limit_s:g} s")
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            about = str(cause) if isinstance(cause, DataError) else f"{type(cause).__name__}: {cause}"
            await self._lose(f"{what} failed: {about}"[:500])
        except BaseException:
            await self._drop(f"{what} was broken off")
            raise

    async def _lose(self, reason: str) -> NoReturn:
        await self._drop(reason)
        raise EnvironmentLost(self._lost) from None

    async def _drop(self, reason: str) -> None:
        """Cut the connection; later calls raise with the first reason."""
        self._lost = self._lost or f"{self.name}: {reason}"
        await self._cut()


class RemoteEnvironment(RemoteSession):
    """One session on a server that speaks OpenEnv's wire: ours, or anybody's.

    Example:
        >>> environment = RemoteEnvironment(RemoteConfig("http://127.0.0.1:8000"))  # doctest: +SKIP
        >>> first = await environment.reset({"id": "alarm"}, seed=0)
        >>> shown = await environment.step(Call("tap", {"x": 120, "y": 80}))
        >>> await environment.close()

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, settings: RemoteConfig) -> None:
        self._base = base_url(settings.url)
        super().__init__(str(self._base))
        self.settings = settings
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._ours = False
        """Whether the server has said that it hears of submissions, as only ours do."""

    async def open(self) -> None:
        self._check_kept()
        if self._tools is not None:
            return
        settings = self.settings
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        self._http = aiohttp.ClientSession(headers=headers)
        async with self._within(settings.connect_s, "connecting"):
            try:
                self._socket = await self._http.ws_connect(
                    self._base.with_scheme("wss" if self._base.scheme == "https" else "ws") / "ws",
                    max_msg_size=settings.limits.message_bytes,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                    compress=0,
                )
            except aiohttp.WSServerHandshakeError as error:
                await self._lose(f"it answered {error.status} to a WebSocket{_HINTS.get(error.status, '')}")
        self._tools = await (self._listed() if settings.actions == "tools" else self._plain(self._http))

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        if "seed" in task:
            raise DataError("a task must not have a field 'seed': the seed is given beside the task")
        await self.open()
        self._round = -1
        message = {"type": "reset", "data": {**task, "seed": seed}}
        try:
            return await self._seen(message, self.settings.reset_s, "reset")
        except Refused as error:
            raise DataError(f"{self.name}: {error}") from None

    async def step(self, call: Call) -> StepResult:
        self._check_begun()
        data = dict(call.arguments)
        if self.settings.actions == "tools":
            data = {"type": "call_tool", "tool_name": call.name, "arguments": data}
        try:
            return await self._seen({"type": "step", "data": data}, self.settings.act_s, call.name)
        except Refused as error:
            return StepResult(self._round, error=str(error))  # not counted

    async def submitted(self, message: str) -> None:
        """Tell the server the message, unless it does not hear of submissions."""
        self._check_begun()
        if self._ours:
            request = {"type": SUBMITTED, "data": {"message": message}}
            await self._ask(request, self.settings.act_s, SUBMITTED, due=SUBMITTED)

    async def state(self) -> dict[str, Any] | None:
        """Ask for the ground truth; a server that does not tell it sends an empty object."""
        return await self._ask({"type": "state"}, self.settings.act_s, "state", due="state") or None

    async def close(self) -> None:
        if self._socket is not None and not self._lost:
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._socket.send_str(encode({"type": "close"}))
                    await self._socket.close()
        await super().close()

    async def _listed(self) -> list[dict[str, Any]]:
        request, limit_s = {"type": "step", "data": {"type": "list_tools"}}, self.settings.act_s
        try:
            data = await self._ask(request, limit_s, "list_tools")
        except Refused as error:
            await self._lose(f"it has no tools ({error}); actions='plain' is for such environments")
        match data:
            case {"observation": {"metadata": {"hears": [*heard]}}}:
                self._ours = SUBMITTED in heard
        shown = data.get("observation")
        async with self._within(None, "list_tools"):
            return read_tools(shown.get("tools") if isinstance(shown, dict) else None)

    async def _plain(self, http: aiohttp.ClientSession) -> list[dict[str, Any]]:
        """The only tool of an environment without tools; ``/schema`` says which fields its actions have."""
        async with self._within(self.settings.act_s, "/schema"), http.get(self._base / "schema") as reply:
            schema = (await read_object(reply, self.settings.limits.message_bytes)).get("action")
        shape = schema if isinstance(schema, dict) else {}
        fields = shape.get("properties")
        own = {k: v for k, v in fields.items() if k != "metadata"} if isinstance(fields, dict) else {}
        tool = {"name": "step", "description": shape.get("description", "")}
        return read_tools([tool | {"input_schema": {**shape, "properties": own}}])

    async def _ask(
        self, message: Mapping[str, Any], limit_s: float, what: str, due: str = "observation"
    ) -> dict[str, Any]:
        """Send a message and return the data of the reply, which has to be of the type that is ``due``.

        Raises:
            Refused: The server cannot do what was to lead to an observation, such as with these arguments.
        """
        self._check_kept()
        if self._socket is None:
            raise DataError(f"{self.name}: open() or reset() comes first")
        sent, what = encode(message), what[:40]
        async with self._within(limit_s, what):
            await self._socket.send_str(sent)
            reply = await self._socket.receive()
            if reply.type is not aiohttp.WSMsgType.TEXT:
                how = "bytes" if reply.type is aiohttp.WSMsgType.BINARY else "the end of the connection"
                told = f": {reply.data}" if reply.type is aiohttp.WSMsgType.ERROR else ""
                await self._lose(f"{what} was answered with {how}{told}"[:300])
            kind, data = decode(reply.data)
            if kind == due:
                return data
            if kind != "error":
                await self._lose(f"{what} was answered with {kind[:40]!r}")
            reason, code = str(data.get("message", "no reason given")), str(data.get("code", "no code"))
            told = f"{reason[:500]} ({code[:40]})"
            if code == VALIDATION_ERROR and due == "observation":
                raise Refused(told)
            await self._lose(told)

    async def _seen(self, message: Mapping[str, Any], limit_s: float, what: str) -> StepResult:
        data = await self._ask(message, limit_s, what)
        async with self._within(None, what[:40]):
            # Decoding an image takes as long as a hundred messages.
            due, limits = self._round + 1, self.settings.limits
            seen = await asyncio.to_thread(read_observation, data, due, limits, self._ours)
        self._round = seen.round
        return seen

    async def _cut(self) -> None:
        http, self._http, self._socket = self._http, None, None
        if http is not None:
            await asyncio.shield(http.close())


def base_url(url: str) -> URL:
    """Return a server's address without a slash at its end.

    Raises:
        ConfigError: It is no address, or holds a password: keys are given apart, since addresses are printed.
    """
    return URL(checked_address(url, "http://127.0.0.1:8000", "as `key`"))


_WRONG_KEY = f"; the key is missing or wrong ({KEY_VARIABLE})"
_HINTS = {401: _WRONG_KEY, 403: _WRONG_KEY, 404: "; nothing is served below this address"}
"""Why a server refuses a WebSocket, by the status that it answers."""
