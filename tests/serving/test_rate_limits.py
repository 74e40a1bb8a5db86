"""Buckets of requests and tokens, and how headers tell of them."""

from __future__ import annotations

import pytest

from selfverify.serving.rate_limits import Bucket, duration


def test_a_bucket() -> None:
    """Two a minute: two at once, then one each 30 seconds."""
    now = [0.0]
    bucket = Bucket(2, lambda: now[0])
    assert bucket.wait_s(1) == bucket.wait_s(2) == bucket.wait_s(99) == 0
    bucket.take(2)
    assert bucket.wait_s(1) == 30 and bucket.wait_s(0) == 0
    now[0] = 29.9
    assert bucket.wait_s(1) == pytest.approx(0.1)
    now[0] = 30.0
    assert bucket.wait_s(1) == 0
    bucket.take(-99)
    assert bucket.left == 2


def test_what_was_too_much_is_made_up_for() -> None:
    now = [0.0]
    bucket = Bucket(60, lambda: now[0])
    bucket.take(90)
    assert bucket.left == -30 and bucket.wait_s(0) == 30 and bucket.wait_s(1000) == 90
    now[0] = 31.0
    assert bucket.wait_s(1) == 0


def test_fewer_than_one_a_minute() -> None:
    now = [0.0]
    bucket = Bucket(0.5, lambda: now[0])
    assert bucket.wait_s(1) == 0
    bucket.take(1)
    assert bucket.wait_s(1) == 120


def test_headers() -> None:
    now = [0.0]
    bucket = Bucket(60, lambda: now[0])
    bucket.take(12)
    assert bucket.headers("requests") == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "48",
        "x-ratelimit-reset-requests": "12s",
    }
    bucket.take(100)
    assert bucket.headers("tokens")["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (-1, "0s"), (0.0004, "0s"), (0.12, "120ms"), (0.9996, "1s"), (1.5, "1.5s"),
        (59.9999, "1m0s"), (72, "1m12s"), (360, "6m0s"), (3605.25, "1h0m5.25s"), (90000, "25h0m0s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    """As Go writes them, which OpenAI's headers follow."""
    assert duration(seconds) == text
