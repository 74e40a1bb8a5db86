"""How long the gateway's /health takes to answer while it is attacked, and how much memory that takes.

    python benchmarks/gateway_attacks.py

Each attack is many requests at once, to a gateway before a model server and to one with a model of its own:

- ``pictures``: twelve PNGs of 7 kB with 7071 x 7071 pixels of one bit, 50 megapixels each;
- ``allowed``: twelve with 4470 x 4470 pixels, nearly as many as a request may have;
- ``lists``: 60 MB of ``[],``, three times;
- ``nodes``: twelve requests with 4,700 small objects, nearly as many values as a request may have.

A process of its own asks for /health all the time on one connection. Where there are two cores or more, the
gateway has one and everything else another; what ``nothing`` shows is what the machine itself adds. Where
others use it too, ``health_cpu_ms_most`` says more: the most CPU time that the gateway took while one /health
waited, in steps of 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import io
import json
import os
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
from fake_model_server import loop_factory
from gateway_load import percentile, processes, watch
from PIL import Image

GATEWAYS = {
    "before a server": ("m", ["--upstream", "SERVER", "--timeout", "20"]),
    "own model": ("builtin:digits", ["--model", "builtin:digits", "--max-tokens", "32", "--timeout", "20"]),
}
"""The model's name, and the gateway's options."""


def request(model: str, content: Any, number: int) -> bytes:
    """A question. Its number decides how long the model server takes."""
    return json.dumps(
        {"model": model, "seed": number * 100, "messages": [{"role": "user", "content": content}]}
    ).encode()


def with_picture(model: str, side: int, number: int) -> bytes:
    """A question about a black picture of one bit a pixel."""
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG", optimize=True)
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
    return request(model, content, number)


def attacks(model: str) -> dict[str, list[bytes]]:
    """The requests of each attack, which are sent at once."""
    lists = b'{"model": "m", "messages": [' + b"[]," * 20_000_000 + b"[]]}"
    nodes = [{"type": "text", "text": "?", "a": 1}] * 4_700
    return {
        "nothing": [],
        "pictures": [with_picture(model, 7071, number) for number in range(12)],
        "allowed": [with_picture(model, 4470, number) for number in range(12)],
        "lists": [lists] * 3,
        "nodes": [request(model, nodes, number) for number in range(12)],
    }


def probe(url: str, gateway: int) -> None:
    """Ask for /health until the input ends; print how long each answer took, and how much CPU time the
    process ``gateway`` has taken meanwhile, in seconds."""
    process = psutil.Process(gateway)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    found, spent = list[float](), list[float]()
    while not over.wait(0.003):
        begun, before = time.perf_counter(), sum(process.cpu_times()[:2])
        connection.request("GET", "/health")
        connection.getresponse().read()
        found.append(time.perf_counter() - begun)
        spent.append(sum(process.cpu_times()[:2]) - before)
    print(json.dumps([found, spent]))


async def attack(url: str, process: psutil.Process, bodies: list[bytes]) -> dict[str, Any]:
    """Send all requests at once; return what /health and the gateway's memory did meanwhile."""
    prober = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--probe", url, str(process.pid),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
    )  # fmt: skip
    before = process.memory_info().rss / 1e6
    sizes, statuses = [before], Counter[str]()
    watching = asyncio.ensure_future(watch(process, sizes))
    json_type, connector = {"Content-Type": "application/json"}, aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=json_type) as session:

        async def ask(body: bytes) -> None:
            try:
                async with session.post(f"{url}/v1/chat/completions", data=body) as response:
                    await response.read()
                    statuses[str(response.status)] += 1
            except aiohttp.ClientError:  # refused before all of it was sent
                statuses["closed"] += 1

        await asyncio.sleep(1.0)
        begun = time.perf_counter()
        await asyncio.gather(*map(ask, bodies))
        seconds = time.perf_counter() - begun
        await asyncio.sleep(1.0)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    told, _ = await prober.communicate(b"")
    found, spent = json.loads(told)
    return {
        "seconds": round(seconds, 2),
        "statuses": dict(statuses),
        "health_asked": len(found),
        "health_ms_p50": percentile(found, 0.5),
        "health_ms_p99": percentile(found, 0.99),
        "health_ms_most": percentile(found, 1.0),
        "health_cpu_ms_most": percentile(spent, 1.0),
        "memory_mb_before": round(before, 1),
        "memory_mb_more": round(max(sizes) - before, 1),
    }


async def behave(server: str) -> None:
    """Let the model server take 0.6 s on average."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server}/behave", json={"mean": 0.6, "knows_n": True}) as response,
    ):
        response.raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.probe:
        probe(asked.probe[0], int(asked.probe[1]))
        return
    figures: dict[str, Any] = {"load_average": [round(os.getloadavg()[0], 2)], "cores": os.cpu_count()}
    for name, (model, serve) in GATEWAYS.items():
        figures[name] = {}
        with (
            processes(60, serve) as (server, url, process),
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            runner.run(behave(server))
            for kind, bodies in attacks(model).items():
                figures[name][kind] = found = runner.run(attack(url, process, bodies))
                print(f"{name}: {kind:10} {found}", flush=True)
    figures["load_average"].append(round(os.getloadavg()[0], 2))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
