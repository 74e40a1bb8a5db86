"""A model server for `gateway_load.py` that takes its time as one does, and costs little else.

    python benchmarks/fake_model_server.py PORT_FILE WORDS

It answers in one reply or in a stream of one chunk a word, continues messages behind ``<score>``, and ignores
``n`` if told to. A question's number, its ``seed`` without the last two digits, decides how long it takes and
what candidates say; the last two digits are the first candidate's number.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import web

WORDS = ("the", "sum", "of", "both", "numbers", "in", "this", "picture", "is", "what", "was", "asked", "for")
_SEED, _N = re.compile(rb'"seed": ?(\d+)'), re.compile(rb'"n": ?(\d+)')
_STREAMS, _CONTINUES = re.compile(rb'"stream": ?true'), re.compile(rb'"continue_final_message": ?true')


def delay_s(seed: int, mean: float) -> float:
    """How long a reply takes: log-normal, a tenth of them more than twice the median."""
    return random.Random(seed).lognormvariate(-(0.54**2) / 2, 0.54) * mean


def winner(number: int) -> str:
    """The answer that most candidates give, and with the highest scores."""
    return str(100 + number % 800)


def said(number: int, candidate: int, words: int) -> str:
    """What a candidate says: five of eight agree."""
    rng, right = random.Random(number * 100 + candidate), candidate % 8 in (0, 2, 3, 5, 6)
    answer = winner(number) if right else str(rng.randrange(1000, 2000))
    thought = " ".join(rng.choices(WORDS, k=words))
    return f"<think>{thought}</think> <answer>{answer}</answer><score>0.{9 if right else 3}</score>"


def whole(texts: list[str], **more: Any) -> bytes:
    """A reply."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}
        for i, text in enumerate(texts)
    ]
    tokens = sum(len(text.split()) + 12 for text in texts)
    usage = {"prompt_tokens": 300, "completion_tokens": tokens, "total_tokens": 300 + tokens}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}).encode()


def events(texts: list[str]) -> bytes:
    """The same as a stream."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}

    def event(index: int, delta: dict[str, str], finish: str | None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"

    words = [(i, word) for i, text in enumerate(texts) for word in re.findall(r"\S+ ?", text)]
    written = [event(i, {"content": word}, None) for i, word in words]
    ends = [event(i, {}, "stop") for i in range(len(texts))]
    return b"".join([*written, *ends, b"data: [DONE]\n\n"])


@cache
def score() -> bytes:
    """How a score goes on: 0.9, each of its three tokens with twenty alternatives."""

    def entry(token: str) -> dict[str, Any]:
        others = [{"token": f"{other}", "logprob": -9.0 - other, "bytes": [48]} for other in range(19)]
        first = {"token": token, "logprob": math.log(0.9), "bytes": [48]}
        return {**first, "top_logprobs": [first, *(o for o in others if o["token"] != token)]}

    return whole(["0.9"], logprobs={"content": [entry(token) for token in ("0", ".", "9")]})


class FakeModelServer:
    """Its mean delay, and whether it knows ``n``, can be set while it runs; it counts the bytes it sends."""

    def __init__(self, words: int) -> None:
        self.words, self.mean, self.knows_n, self.sent = words, 0.0, True, 0
        self._replies: dict[tuple[int, int, bool], bytes] = {}

    async def chat(self, request: web.Request) -> web.Response:
        """Answer. The request is not parsed: the server shares a core with the clients."""
        body = await request.read()
        if _CONTINUES.search(body):
            await asyncio.sleep(self.mean / 20)
            return self._response(score(), streams=False)
        seed, n, streams = _last(_SEED, body), _last(_N, body), bool(_STREAMS.search(body))
        key = (seed, n if self.knows_n else 1, streams)
        if key not in self._replies:
            texts = [said(seed // 100, seed % 100 + i, self.words) for i in range(key[1])]
            self._replies[key] = events(texts) if streams else whole(texts)
        await asyncio.sleep(delay_s(seed, self.mean))
        return self._response(self._replies[key], streams)

    def _response(self, body: bytes, streams: bool) -> web.Response:
        self.sent += len(body)
        kind = "text/event-stream" if streams else "application/json"
        return web.Response(body=body, content_type=kind)

    async def behave(self, request: web.Request) -> web.Response:
        """Take settings, and tell how many bytes were sent until now."""
        told = await request.json()
        self.mean, self.knows_n = told["mean"], told["knows_n"]
        return web.json_response({"sent": self.sent})

    async def serve(self, port_file: Path) -> None:
        """Serve for an hour."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/behave", self.behave)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        assert site._server is not None
        port_file.write_text(str(site._server.sockets[0].getsockname()[1]))  # type: ignore[attr-defined]
        await asyncio.sleep(3600)


def _last(pattern: re.Pattern[bytes], body: bytes) -> int:
    return int(([b"1", *pattern.findall(body)])[-1])


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, if that is there."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop  # type: ignore[no-any-return]
    return asyncio.new_event_loop


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(FakeModelServer(int(sys.argv[2])).serve(Path(sys.argv[1])))
