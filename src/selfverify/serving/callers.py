"""Who asks, and what they may take: requests and tokens a minute, and tokens in all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from selfverify.serving.api_errors import ApiError
from selfverify.serving.foreseen import Foreseen
from selfverify.serving.key_ledger import Budget, Ledger
from selfverify.serving.key_settings import ClientKey
from selfverify.serving.rate_limits import Bucket
from selfverify.serving.request_record import RequestRecord

MOST_CALLERS = 10_000


class Caller:
    """A key or, where none is needed, a network address.

    Args:
        requests_per_minute: One with n candidates counts as n; None is no limit.
        tokens_per_minute: Read and written; None is no limit.
        budget: The tokens of all its requests together.
    """

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.requests = None if requests_per_minute is None else Bucket(requests_per_minute)
        self.tokens = None if tokens_per_minute is None else Bucket(tokens_per_minute)
        self.budget = budget

    def check(self, requests: int, tokens: int) -> None:
        """Raise `ApiError` if so much may not be taken now."""
        if self.budget is not None:
            _check(self.budget, tokens)
        for bucket, amount, kind in (
            (self.requests, requests, "requests a minute, of which one with n candidates counts as n"),
            (self.tokens, tokens, "tokens a minute"),
        ):
            wait = 0.0 if bucket is None else bucket.wait_s(amount)
            if bucket is not None and wait > 0:
                text = f"more than {bucket.per_minute:g} {kind}; ask again in {wait:.1f} s"
                raise ApiError(429, text, "rate_limit_exceeded", retry_after=wait)

    def take(self, requests: int, tokens: int) -> None:
        """Take so much, or give it back where it is negative; of the budget it is only held."""
        if self.requests is not None:
            self.requests.take(requests)
        if self.tokens is not None:
            self.tokens.take(tokens)
        if self.budget is not None:
            self.budget.held += tokens

    def headers(self) -> dict[str, str]:
        """Return what a response says of its caller's limits."""
        found = {} if self.requests is None else self.requests.headers("requests")
        return found | ({} if self.tokens is None else self.tokens.headers("tokens"))


class Grant:
    """What one request takes of its caller's limits: one request at first, all when it has been read, and in
    the end what it was.

    Raises:
        ApiError: The caller may not ask now.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.requests, self.prompt, self.tokens = 0, 0, 0
        self._take(1, 0)

    def ask(self, candidates: int) -> None:
        """Take the candidates of a question, or the answers to verify.

        Raises:
            ApiError: The caller may not ask for so many now.
        """
        self._give_back()
        self._take(max(1, candidates), 0)

    @property
    def counts_tokens(self) -> bool:
        """Whether the tokens of its caller are limited."""
        return self.caller.tokens is not None or self.caller.budget is not None

    def set_aside(self, foreseen: Foreseen) -> None:
        """Take the tokens that a question may need.

        Raises:
            ApiError: The caller may not take so many now.
        """
        requests = self.requests
        self._give_back()
        self.prompt = foreseen.prompt
        self._take(requests, foreseen.most)

    def settle(self, record: RequestRecord, left: bool) -> None:
        """Take what it was in the end, instead: the candidates that were drawn, the tokens that were used.

        A prompt that nobody counted counts by its estimate, each time that it was read. A client that
        ``left`` pays what was set aside, where nobody says what its request cost.
        """
        usage, drawn, spent = record.usage, record.candidates, 0
        if usage is not None:
            spent = usage.prompt_tokens + usage.candidate_tokens + usage.verification_tokens
            uncounted = usage.uncounted_prompts * self.prompt + usage.estimated_tokens
            if left and not (usage.complete and usage.calls):
                spent = max(spent + uncounted, self.tokens)
            elif usage.calls and not (usage.prompt_tokens or uncounted):
                spent += self.prompt
            else:
                spent += uncounted
        requests = self.requests if drawn is None else min(self.requests, max(1, drawn))
        self._give_back()
        self.caller.take(requests, spent)
        if self.caller.budget is not None:
            self.caller.budget.held -= spent
            self.caller.budget.unsaved += spent

    def _take(self, requests: int, tokens: int) -> None:
        self.caller.check(requests, tokens)
        self.caller.take(requests, tokens)
        self.requests, self.tokens = requests, tokens

    def _give_back(self) -> None:
        self.caller.take(-self.requests, -self.tokens)
        self.requests = self.tokens = 0


GRANT = web.RequestKey("grant", Grant)


class Callers:
    """Finds callers: named keys with limits of their own, and all others.

    Args:
        keys: The named keys.
        rate_limit: The requests a minute of callers without a limit of their own.
        usage: The file in which is kept what keys with a budget have spent; None keeps it while this lives.

    Raises:
        ConfigError: That file cannot be used.
    """

    def __init__(
        self, keys: Sequence[ClientKey], rate_limit: float | None, usage: Path | None = None
    ) -> None:
        self._rate_limit = rate_limit
        self.budgets = {key.name: Budget(key.budget_tokens) for key in keys if key.budget_tokens is not None}
        self.ledger = None if usage is None else Ledger(usage, self.budgets)
        self._named = {
            key.name: Caller(
                rate_limit if key.requests_per_minute is None else key.requests_per_minute,
                key.tokens_per_minute,
                self.budgets.get(key.name),
            )
            for key in keys
        }
        self._others: OrderedDict[str, Caller] = OrderedDict()

    def find(self, name: str) -> Caller:
        """Return the caller with a key's name, or with an address."""
        if name in self._named:
            return self._named[name]
        if self._rate_limit is None:
            return Caller()
        caller = self._others.pop(name, None) or Caller(self._rate_limit)
        self._others[name] = caller
        while len(self._others) > MOST_CALLERS:
            self._others.popitem(last=False)  # who has not asked for longest; its bucket is the fullest
        return caller


def _check(budget: Budget, tokens: int) -> None:
    """Raise `ApiError` if so many tokens may not be taken from a budget."""
    left = budget.most - budget.spent
    if left <= 0:
        text = f"the {budget.most:,} tokens of this key are used up"
    elif tokens > left:
        text = (
            f"this request may take {tokens:,} tokens, and {left:,} of this key's {budget.most:,} are left; "
            "ask for fewer candidates or a smaller max_tokens"
        )
    elif tokens > left - budget.held:
        text = f"requests that are being worked on may take {budget.held:,} of the {left:,} tokens left"
        raise ApiError(429, text, "rate_limit_exceeded", retry_after=1.0)
    else:
        return
    raise ApiError(429, text, "insufficient_quota")
