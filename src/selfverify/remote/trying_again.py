"""Make a call again that failed for a passing reason, after waits that grow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from selfverify.core.errors import ConfigError, ServerError
from selfverify.remote.connection import ServerConfig

try:
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
    from tenacity.wait import wait_exponential_jitter
except ImportError as error:
    raise ConfigError(f"servers need more: pip install 'selfverify[serve]' ({error})") from None

Found = TypeVar("Found")


async def tried_again(
    attempt: Callable[[], Awaitable[Found]], settings: ServerConfig, until: float | None = None
) -> Found:
    """Return what the first attempt gives that succeeds.

    Args:
        attempt: The call.
        settings: How often it is made, and with what waits.
        until: No attempt begins after this time of the event loop's clock.

    Raises:
        ServerError: The last attempt failed, or one failed in a way that another one would not help.
    """
    try:
        return await attempt()
    except ServerError as error:
        if not error.retry:
            raise
        before = [error]

    # Only now: tenacity's objects refer to each other in circles. With 32 of them for each call, the garbage
    # collector stopped a gateway for 20 ms every other second.
    async def next_attempt() -> Found:
        if before:
            raise before.pop()
        return await attempt()

    now = asyncio.get_running_loop().time
    waits = wait_exponential_jitter(
        multiplier=settings.wait_s, max=settings.longest_wait_s, jitter=settings.wait_s
    )

    def asked(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        return (error.retry_after or 0.0) if isinstance(error, ServerError) else 0.0

    def wait(state: RetryCallState) -> float:
        return max(asked(state), waits(state))

    def stop(state: RetryCallState) -> bool:
        """Whoever asks is told at once to come back later, where this is too late for another try."""
        late = until is not None and now() + state.upcoming_sleep >= until
        return state.attempt_number >= settings.tries or asked(state) > settings.longest_wait_s or late

    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, ServerError) and error.retry),
        stop=stop,
        wait=wait,
        reraise=True,
    )
    return await retrying(next_attempt)
