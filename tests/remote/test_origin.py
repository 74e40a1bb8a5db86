"""The time for which a request waits for servers."""

from __future__ import annotations

from selfverify.remote.origin import ORIGIN, Origin, called


def test_time_in_which_calls_are_open_counts_once() -> None:
    """Two calls overlap, from 1 to 5 and from 3 to 6; a third one goes from 8 to 9."""
    now = [1.0]
    origin = Origin({"a": "b"}, lambda: now[0])
    with origin.call("chat/completions", "m") as headers:
        assert headers == {"a": "b"}
        now[0] = 3.0
        second = origin.call("chat/completions", "m")
        second.__enter__()
        assert origin.seconds == 2
        now[0] = 5.0
    now[0] = 6.0
    second.__exit__(None, None, None)
    now[0] = 8.0
    assert origin.seconds == 5
    with origin.call("models", None):
        now[0] = 9.0
    assert (origin.seconds, origin.calls) == (6, 3)


def test_calls_are_made_for_the_request_that_is_answered() -> None:
    with called("models") as headers:
        assert headers == {}
    origin = Origin({"a": "b"})
    entered = ORIGIN.set(origin)
    try:
        with called("chat/completions", 7) as headers:
            assert headers == {"a": "b"} and origin.calls == 1
    finally:
        ORIGIN.reset(entered)
