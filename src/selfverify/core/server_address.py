"""Addresses of servers as people write them."""

from __future__ import annotations

from urllib.parse import urlsplit

from selfverify.core.errors import ConfigError


def checked_address(url: str, example: str, key_goes: str) -> str:
    """Return an http or https address, without a slash at its end.

    Addresses are printed and logged, so none may hold a password or a key.

    Args:
        url: The address as it was given.
        example: What one looks like.
        key_goes: Where a key is given instead.

    Raises:
        ConfigError: It is no such address, or holds a user, a password or a query. The message quotes nothing
            that may be one of these.
    """
    shown = "the address" if {"@", "?", "#"} & set(url) else repr(url[:200])
    wrong = ConfigError(f"{shown} is no address of a server; one looks like {example}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading the port checks it
    except ValueError:
        raise wrong from None
    fits = parts.scheme in ("http", "https") and url.isprintable() and " " not in url
    if not fits or not host or (":" in host and "[" not in parts.netloc):
        raise wrong
    if "@" in parts.netloc or parts.query or parts.fragment:
        text = f"a key or a password does not belong into the address, which is printed; give it {key_goes}"
        raise ConfigError(f"{parts.scheme}://{host}: {text}")
    return url.rstrip("/")
