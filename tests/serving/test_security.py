"""Images that are meant to do harm."""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from selfverify.serving.api_errors import ApiError
from selfverify.serving.remote_images import RemoteImages, is_public
from selfverify.serving.request_images import Picture, take_images
from selfverify.serving.serve_settings import ImageLimits
from serving_servers import data_url, png


def take(url: Any, limits: ImageLimits | None = None, fetcher: Any = None, count: int = 1) -> list[Picture]:
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [part] * count}]
    return asyncio.run(take_images(messages, limits or ImageLimits(), fetcher))


def test_an_image_is_taken() -> None:
    [picture] = take(data_url(png((4, 3), "RGBA")))
    assert picture.format == "PNG" and picture.decode().size == (4, 3) and picture.decode().mode == "RGB"
    assert picture.url == data_url(png((4, 3), "RGBA"))
    [large] = take("data:image/bmp;base64," + data_url(png((900, 900))).partition(",")[2])
    assert large.format == "PNG"


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("url", "code", "status"),
    [
        (data_url(b"no image"), "invalid_image", 400),
        (data_url(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "invalid_image", 400),
        (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "invalid_image", 400),
        (data_url(png()[:20]), "invalid_image", 400),
        ("data:image/png;base64,!!!!", "invalid_image", 400),
        ("data:image/png,abc", "invalid_image", 400),
        ("data:text/html;base64,YQ==", "invalid_image", 400),
        (data_url(bomb(10_000, 10_000)), "image_too_large", 413),
        (data_url(bomb(4480, 4480)), "image_too_large", 413),  # over 20 million pixels
        (data_url(bomb(60_000, 60_000)), "image_too_large", 413),
        (data_url(png() + b"0" * 200_000), "image_too_large", 413),
        (data_url(png() + b"0" * 900_000), "image_too_large", 413),
        ("https://example.org/cat.png", "remote_image_refused", 400),
        ("file:///etc/passwd", "remote_image_refused", 400),
        ("", "invalid_value", 400),
        (None, "invalid_value", 400),
    ],
)
def test_images_that_are_refused(url: Any, code: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        take(url, ImageLimits(bytes=100_000))
    assert (caught.value.code, caught.value.status) == (code, status)


def test_a_broken_image_is_found_when_it_is_decoded() -> None:
    [picture] = take(data_url(png((300, 300))[:90]))
    with pytest.raises(ApiError, match="decoded"):
        picture.decode()


def test_a_requests_pixels_are_counted_together() -> None:
    limits, url = ImageLimits(pixels=3000), data_url(png((32, 32)))
    assert len(take(url, limits, count=2)) == 2
    with pytest.raises(ApiError, match="3,072 pixels together") as caught:
        take(url, limits, count=3)
    assert (caught.value.code, caught.value.status) == ("image_too_large", 413)


def test_too_many_images() -> None:
    with pytest.raises(ApiError, match="17 images"):
        take(data_url(png()), count=17)


PRIVATE = """
127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 x
192.0.2.1 198.18.0.1 ::1 :: fe80::1 fe80::1%eth0 fc00::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1
64:ff9b::7f00:1 2002:7f00:1:: 2002:a00:1:: 2001:0:7f00:1:: 2001:db8::1 fec0::1 ::7f00:1
64:ff9b:1::7f00:1 ::ffff:0:7f00:1 5f00::1
"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


class Names(AbstractResolver):
    """Says that every name is at this address."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=self.address, port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


def fetch(
    handler: Callable[[web.Request], Any], url: str = "/", allowed: Any = None, **settings: Any
) -> tuple[bytes | ApiError, list[str]]:
    """What comes of fetching ``url`` from a server on the loopback, and the paths that it was asked for."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        response: web.StreamResponse = await handler(request)
        return response

    async def main() -> bytes | ApiError:
        async with AsyncExitStack() as stack:
            app = web.Application()
            app.router.add_get("/{path:.*}", answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            more = {"most_bytes": 1000, "timeout_s": 2.0} | settings
            remote = RemoteImages(allowed=allowed or (lambda address: True), **more)
            await stack.enter_async_context(remote)
            target = url if "://" in url else f"http://127.0.0.1:{port}{url}"
            try:
                return await remote.fetch(target.replace("PORT", str(port)))
            except ApiError as error:
                return error

    return asyncio.run(main()), seen


async def small(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"image")


def test_a_remote_image() -> None:
    assert fetch(small) == (b"image", ["/"])


@pytest.mark.parametrize(
    "url",
    ["/", "http://localhost:PORT/", "http://2130706433:PORT/", "http://0x7f.1:PORT/", "http://[::1]:PORT/"],
)
def test_the_loopback_is_not_asked(url: str) -> None:
    """Not even a connection is opened, however the address is written."""
    found, seen = fetch(small, url, is_public)
    assert isinstance(found, ApiError) and found.status == 400 and seen == []


def test_a_name_of_a_private_address() -> None:
    """The check is on what is connected to, so what a name was looked up as before does not matter."""
    found, seen = fetch(small, "http://cat.example:PORT/", is_public, resolver=Names("127.0.0.1"))
    assert isinstance(found, ApiError) and found.code == "remote_image_refused" and seen == []


def test_redirects_are_checked_too() -> None:
    """The first address is allowed, the one it sends on to is not."""

    async def handler(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"http://127.0.0.2:{request.url.port}/secret")

    found, seen = fetch(handler, allowed=lambda address: address == "127.0.0.1")
    assert isinstance(found, ApiError) and found.code == "remote_image_refused" and seen == ["/"]


def test_other_remote_faults() -> None:
    async def forever(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(request.path + "x")

    async def large(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"0" * 2000)

    async def missing(request: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("file:///etc/passwd")

    async def packed(request: web.Request) -> web.StreamResponse:
        return web.Response(body=zlib.compress(b"0" * 10_000), headers={"Content-Encoding": "deflate"})

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    for handler, text in (
        (forever, "redirects"), (large, "1,000 bytes"), (missing, "404"), (elsewhere, "http"),
        (packed, "compressed"), (slow, "within"),
    ):  # fmt: skip
        found, _ = fetch(handler, timeout_s=0.3)
        assert isinstance(found, ApiError) and text in str(found), handler
    for url in (
        "http://user:pw@127.0.0.1:PORT/",
        "gopher://x/",
        "http:///",
        "http://[",
        "http://" + "x" * 300,
    ):
        found, seen = fetch(small, url)
        assert isinstance(found, ApiError) and not seen
