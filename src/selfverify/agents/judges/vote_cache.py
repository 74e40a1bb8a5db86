"""Answers of judges by what they were asked, so that nobody is asked the same twice."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from selfverify.core.jsonl_store import JsonlStore, read_rows

logger = logging.getLogger(__name__)


class VoteCache:
    """Answers in memory and, with a path, in a journal that outlives the process.

    The key says everything that decides an answer: the judge, its words and settings, the case with its
    pictures, and the vote's number. Failures are not kept: whoever asks again may have an answer.

    Args:
        path: See `keep`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        self._journal: JsonlStore | None = None
        if path is not None:
            self.keep(path)

    def keep(self, path: Path, others: Iterable[Path] = ()) -> None:
        """Know the answers in a file, and keep those that come from now on there.

        What is no answer is left out, so that it is asked for again.

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
                        self._known[key] = answer

    @staticmethod
    def key(asked: Mapping[str, Any]) -> str:
        """The key of a request: 32 hexadecimal digits of its JSON."""
        text = json.dumps(asked, sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer to a request; None where it was never answered."""
        return self._known.get(key)

    def put(self, key: str, answer: dict[str, Any]) -> None:
        """Keep an answer. A file that cannot be written is named in the log and ends nothing."""
        self._known[key] = answer
        if self._journal is not None:
            try:
                self._journal.append({"key": key, "answer": answer})
            except OSError as error:
                logger.warning("%s: a judge's answer cannot be kept: %s", self._journal.path, error)
