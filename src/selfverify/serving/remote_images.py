"""Fetch images that a request names by address, from public addresses only.

The check cannot be evaded: it looks at the very address that a socket is about to connect to, after names
were resolved, and again after each redirect. Proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, Self

import aiohttp
from yarl import URL

from selfverify.remote.bounded_reading import read_at_most
from selfverify.serving.api_errors import ApiError

MOST_REDIRECTS = 3
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is given out; Python also calls global what is reserved, and some old local addresses."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(text: str) -> bool:
    """Whether an address belongs to the public internet: not private, loopback, link-local, shared, reserved
    or multicast, and neither is an IPv4 address that is written inside it."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return _is_global(address)
    if address.ipv4_mapped:
        return _is_global(address.ipv4_mapped)
    if address in _NAT64:
        return _is_global(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    inner = [a for a in (address.sixtofour, *(address.teredo or ())) if a]
    return address in _UNICAST and all(map(_is_global, [address, *inner]))


def _is_global(address: Address) -> bool:
    return address.is_global and not address.is_multicast


class _Refused(OSError):
    """The address that would be connected to is not public."""


class RemoteImages:
    """Fetches images over http and https. Use it as an asynchronous context manager.

    Args:
        most_bytes: The largest image, in bytes.
        timeout_s: The longest time for one image, redirects included.
        allowed: Whether an address may be connected to; tests have to reach a server of their own.
        resolver: Resolves host names; None uses the system's.
    """

    def __init__(
        self,
        most_bytes: int,
        timeout_s: float = 10.0,
        allowed: Callable[[str], bool] = is_public,
        resolver: aiohttp.abc.AbstractResolver | None = None,
    ) -> None:
        self.most_bytes = most_bytes
        self.timeout_s = timeout_s
        self.allowed = allowed
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=32, socket_factory=self._socket, resolver=self._resolver, force_close=True
        )
        self._session = aiohttp.ClientSession(
            connector=connector, trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "selfverify", "Accept": "image/*", "Accept-Encoding": "identity"},
        )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = info
        if not self.allowed(str(address[0])):
            raise _Refused("not a public address")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    async def fetch(self, url: str) -> bytes:
        """Return the bytes of the image at ``url``.

        Raises:
            ApiError: The image may not be fetched, is too large, or did not come in time.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._follow(url)
        except TimeoutError:
            raise _failed(f"it did not come within {self.timeout_s:g} s") from None
        except (_Refused, aiohttp.ClientError, ValueError) as error:
            if isinstance(error, _Refused) or isinstance(getattr(error, "os_error", None), _Refused):
                raise _failed("its address is not a public one", "remote_image_refused") from None
            raise _failed(type(error).__name__) from None

    async def _follow(self, url: str) -> bytes:
        assert self._session is not None, "use it as a context manager"
        target = URL(url)
        for _ in range(MOST_REDIRECTS + 1):
            if target.scheme not in ("http", "https") or not target.host or target.user:
                raise _failed("only plain http and https addresses are fetched", "remote_image_refused")
            async with self._session.get(target, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    target = target.join(URL(response.headers.get("Location", "")))
                    continue
                if response.status != 200:
                    raise _failed(f"status {response.status}")
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise _failed("it comes compressed, which was not asked for")
                image = await read_at_most(response.content, self.most_bytes)
                if image is None:
                    text = f"a remote image takes more than {self.most_bytes:,} bytes"
                    raise ApiError(413, text, "image_too_large")
                return image
        raise _failed(f"more than {MOST_REDIRECTS} redirects")


def _failed(why: str, code: str = "remote_image_failed") -> ApiError:
    return ApiError(400, f"a remote image was not fetched: {why}", code, "messages")
