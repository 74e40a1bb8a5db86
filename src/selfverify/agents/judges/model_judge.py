"""A model behind an OpenAI-compatible server as judge, which is never asked the same twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfverify.agents.judges.case import IMAGE, Awaited, Ballot, Case, Judge, Rendered, read_opinion, render
from selfverify.agents.judges.config import ModelJudgeConfig
from selfverify.clients.candidates import read_choices
from selfverify.clients.openai_client import OpenAIClient, ServerConfig, server_url
from selfverify.clients.replies import Usage, ending
from selfverify.core import event_loop, ranks
from selfverify.core.errors import SelfVerifyError, ServerError
from selfverify.core.images import image_part
from selfverify.core.jsonl_store import JsonlStore, read_rows

logger = logging.getLogger(__name__)


class VoteCache:
    """Answers of judges in memory and, with a path, in a journal that outlives the process.

    The key says everything that decides an answer: the judge, its words and settings, the case with its
    pictures, and the vote's number. Failures are not kept: a later request may have an answer.

    Attributes:
        known: The answers by key.
    """

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self._journal: JsonlStore | None = None
        self._left: list[Any] = []
        """Lines that could not be written; they are tried again with the next one."""

    def keep(self, path: Path, others: Iterable[Path] = ()) -> None:
        """Know the answers in a file, and keep those that come from now on there.

        A failed request is left out, so that it is sent again.

        Args:
            path: A file of JSON lines; it is made if it is not there. Several processes may append to one
                file; each knows what stood in it when it began.
            others: More such files, whose answers are known as well.
        """
        self._journal = JsonlStore(path)
        for file in {path, *others}:
            for row in read_rows(file, skip_corrupt=True):
                match row:
                    case {"key": str(key), "answer": {"text": str(), "finish": str()} as answer}:
                        self.known[key] = answer

    @staticmethod
    def key(asked: Mapping[str, Any]) -> str:
        """The key of a request: 32 hexadecimal digits of its JSON."""
        text = json.dumps(asked, sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def put(self, key: str, answer: dict[str, Any]) -> None:
        """Keep an answer. A file that cannot be written is named in the log, once, and ends nothing; answers
        wait until it can be."""
        self.known[key] = answer
        if self._journal is not None:
            lines = [*self._left, {"key": key, "answer": answer}]
            try:
                self._journal.append(*lines)
                self._left = []
            except OSError as error:
                if not self._left:
                    logger.warning("judges' answers cannot be kept, and wait for room: %s", error)
                self._left = lines


VOTES = "votes"
"""Begins the names of the files in a run's folder that keep answers."""


class ModelJudge(Judge):
    """Asks a server for each vote. A request that fails for good is a ballot without a vote.

    Args:
        config: The server and how it is asked.
        prompt: The judge's prompt (`make_judge.judge_prompt`).

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, config: ModelJudgeConfig, prompt: str) -> None:
        server_url(config.url)
        self.config, self.prompt = config, prompt
        # A vote's time says how long it may wait, also where the server asks for long waits.
        self._server = ServerConfig(
            config.url, timeout_s=config.timeout_s, tries=config.tries, longest_wait_s=config.vote_s
        )
        self._cache = VoteCache()
        if config.cache is not None:
            self._cache.keep(config.cache)
        self._room = asyncio.Semaphore(config.concurrent)
        self._asked: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._counts: dict[str, float] = defaultdict(float)

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        coming = event_loop.start(self._votes(case, render(case), list(numbers)))
        return coming.result

    def set_cache_folder(self, folder: Path) -> None:
        """Keep answers in a file of this folder, one for each process; a cache that the settings name is used
        instead."""
        if self.config.cache is None:
            number = ranks.index()
            own = folder / (f"{VOTES}-{number}.jsonl" if number else f"{VOTES}.jsonl")
            self._cache.keep(own, sorted(folder.glob(f"{VOTES}*.jsonl")))

    def counters(self) -> dict[str, float]:
        """Votes that were asked for, known already and missing; tokens read and written; seconds of answers.

        Seconds are those of all requests one after another, though many wait at the same time.
        """
        names = ("asked", "known", "missing", "tokens_read", "tokens_written", "seconds")
        return {f"judge/{name}": self._counts[name] for name in names}

    async def _votes(self, case: Case, rendered: Rendered, numbers: Sequence[int]) -> list[Ballot]:
        body = self._body(rendered)
        async with OpenAIClient(self._server) as client:
            return list(await asyncio.gather(*[self._vote(client, case, rendered, body, n) for n in numbers]))

    async def _vote(
        self, client: OpenAIClient, case: Case, rendered: Rendered, body: Mapping[str, Any], number: int
    ) -> Ballot:
        key = VoteCache.key({"server": self.config.url, "body": body, "vote": number})
        answer = self._cache.known.get(key)
        about: dict[str, Any] = {"cached": answer is not None or key in self._asked}
        self._counts["known" if about["cached"] else "asked"] += 1
        began = time.monotonic()
        try:
            if answer is None:
                answer = await self._answer(client, key, body, number)
        except (SelfVerifyError, TimeoutError) as error:
            reason = str(error) or f"no vote within {self.config.vote_s:g} s"
            self._counts["missing"] += 1
            return Ballot(number, None, f"outage: {reason}", about | {"outage": True})
        about |= {name: value for name, value in answer.items() if name != "text"}
        about["waited_s"] = round(time.monotonic() - began, 3)
        if ending(answer["finish"], answer["text"]) != "whole":
            return Ballot(number, None, f"the answer ended with {answer['finish']!r}", about)
        opinion = read_opinion(answer["text"], rendered, self.config.quotations)
        if opinion.vote is None:
            return Ballot(number, None, opinion.missing, about | {"text": answer["text"]})
        return Ballot(number, opinion.vote, about=about)

    async def _answer(
        self, client: OpenAIClient, key: str, body: Mapping[str, Any], number: int
    ) -> dict[str, Any]:
        """The server's answer; who asks for the same meanwhile waits for the same."""
        if key in self._asked:
            return await asyncio.shield(self._asked[key])
        coming = asyncio.get_running_loop().create_future()
        # An answer without another waiter must not be reported as an error that was never looked at.
        coming.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._asked[key] = coming
        try:
            answer = await self._request(client, body, number)
            self._cache.put(key, answer)
            coming.set_result(answer)
            return answer
        except BaseException as error:
            coming.set_exception(error if isinstance(error, Exception) else TimeoutError("given up"))
            raise
        finally:
            del self._asked[key]

    async def _request(self, client: OpenAIClient, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        seed = self.config.seed
        seeded = body if seed is None else {**body, "seed": seed + number}
        usage, began = Usage(), time.monotonic()
        async with self._room:
            until = asyncio.get_running_loop().time() + self.config.vote_s
            async with asyncio.timeout_at(until):
                reply = await client.chat(seeded, usage.lost, until)
        [written, *_] = read_choices(reply, usage, judge=True)
        seconds = time.monotonic() - began
        self._counts["seconds"] += seconds
        self._counts["tokens_read"] += usage.prompt_tokens
        self._counts["tokens_written"] += usage.verification_tokens
        if written.ending == "broken_off":
            raise ServerError(f"the server broke its answer off: {written.finish}", retry=True)
        return {
            # Some servers take all that a model writes for its thoughts.
            "text": written.text if written.text.strip() else written.thoughts,
            "finish": written.finish,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.verification_tokens,
            "calls": usage.calls,
            "seconds": round(seconds, 3),
        }

    def _body(self, rendered: Rendered) -> dict[str, Any]:
        c = self.config
        return {
            "model": c.model,
            "messages": [
                {"role": "system", "content": self.prompt},
                {"role": "user", "content": content(rendered, c.images)},
            ],
            "temperature": c.temperature,
            "max_tokens": c.max_tokens,
            **c.extra,
        }


def content(rendered: Rendered, images: bool) -> str | list[dict[str, Any]]:
    """A case as the content of a message in OpenAI's form: a plain text where no picture is shown.

    Args:
        rendered: The case.
        images: Whether pictures are shown; without them their places say that there was one.
    """
    if not images or IMAGE not in rendered.text:
        return rendered.text.replace(IMAGE, "(not shown)")
    return rendered.parts(map(image_part, rendered.images))
