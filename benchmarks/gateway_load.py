"""What the gateway costs under load: 200 clients, a model server with realistic delays, n = 8.

    python benchmarks/gateway_load.py

Three processes: a fake model server, ``selfverify serve --upstream`` in front of it, the clients (this one).
Each client asks again as soon as it was answered. A question's seed decides how long the server takes and
what its candidates say, so the same question can be asked directly and through the gateway, and the
difference of the two latencies is what was added. Both ways take turns, in the same run. Every answer is
checked: it has to be the one that wins the vote.

A second part asks with a server that is quick, to see how many requests a second the gateway can do at most.
Where there are two cores or more, the gateway has one and server and clients another.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web
from pydantic_core import from_json

WORDS = ("the", "sum", "of", "both", "numbers", "in", "this", "picture", "is", "what", "was", "asked", "for")


def delay_s(seed: int, mean: float) -> float:
    """How long a reply takes: log-normal, a tenth of them more than twice the median."""
    return random.Random(seed).lognormvariate(-(0.54**2) / 2, 0.54) * mean


def winner(seed: int) -> str:
    """The answer that most candidates give, and with the highest scores."""
    return str(100 + seed % 800)


def reply(seed: int, n: int, words: int) -> bytes:
    """What the model server sends: five of eight candidates agree."""
    rng = random.Random(-seed)
    choices = []
    for i in range(n):
        right = i % 8 in (0, 2, 3, 5, 6)
        said = " ".join(rng.choices(WORDS, k=words))
        answer = winner(seed) if right else str(rng.randrange(1000, 2000))
        text = f"<think>{said}</think><answer>{answer}</answer><score>0.{9 if right else 3}</score>"
        choices.append(
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        )
    usage = {"prompt_tokens": 300, "completion_tokens": n * (words + 12), "total_tokens": 300}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}).encode()


def question(seed: int, image: str) -> bytes:
    """A request."""
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "What do both numbers in this picture add up to?"}
    ]
    if image:
        content.insert(0, {"type": "image_url", "image_url": {"url": image}})
    return json.dumps(
        {"model": "m", "seed": seed, "n": 1, "messages": [{"role": "user", "content": content}]}
    ).encode()


def upstream(port_file: Path, words: int) -> Coroutine[Any, Any, None]:
    """The fake model server; its mean delay can be set while it runs."""
    mean = [0.0]
    replies: dict[tuple[int, int], bytes] = {}
    seed_of, n_of = re.compile(rb'"seed": ?(\d+)'), re.compile(rb'"n": ?(\d+)')

    async def chat(request: web.Request) -> web.Response:
        body = (
            await request.read()
        )  # not parsed: the server should cost little, it shares a core with clients
        (seed,), (n,) = (map(int, re.findall(pattern, body)[-1:]) for pattern in (seed_of, n_of))
        if (seed, n) not in replies:
            replies[seed, n] = reply(seed, n, words)
        await asyncio.sleep(delay_s(seed, mean[0]))
        return web.Response(body=replies[seed, n], content_type="application/json")

    async def pace(request: web.Request) -> web.Response:
        mean[0] = float(await request.text())
        return web.Response()

    async def serve() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_post("/pace", pace)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        assert site._server is not None
        port_file.write_text(str(site._server.sockets[0].getsockname()[1]))  # type: ignore[attr-defined]
        await asyncio.sleep(3600)

    return serve()


async def ask_all(
    session: aiohttp.ClientSession, url: str, bodies: list[bytes], clients: int, pause: float, n: int
) -> tuple[list[float], float, int]:
    """Latency of each request in seconds, requests per second while all clients were busy, and wrong answers.

    ``n`` > 0 asks the model server itself, which is told how many candidates to write.
    """
    todo = iter(range(len(bodies)))
    latency, ends, wrong = [0.0] * len(bodies), list[float](), 0

    async def client(start: float) -> None:
        nonlocal wrong
        await asyncio.sleep(start)
        for i in todo:
            body = bodies[i].replace(b'"n": 1', b'"n": %d' % n) if n else bodies[i]
            begun = time.perf_counter()
            async with session.post(url, data=body) as response:
                raw = await response.read()
            ends.append(time.perf_counter())
            latency[i] = ends[-1] - begun
            said = from_json(raw)["choices"][0]["message"]["content"] if response.status == 200 else ""
            wrong += f"<answer>{winner(i)}</answer>" not in said
        return None

    await asyncio.gather(*(client(pause * k / clients) for k in range(clients)))
    middle = sorted(ends)[clients : len(ends) - clients]
    return latency, (len(middle) - 1) / (middle[-1] - middle[0]), wrong


@contextmanager
def processes(options: argparse.Namespace) -> Iterator[tuple[str, str, psutil.Process]]:
    """The addresses of model server and gateway, and the gateway's process."""
    here, cores = Path(__file__).resolve(), sorted(os.sched_getaffinity(0))
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        port_file, log = Path(folder) / "port", Path(folder) / "log"

        def launch(command: list[str], core: int | None) -> subprocess.Popen[bytes]:
            with log.open("ab") as out:
                process = subprocess.Popen([sys.executable, *command], stdout=out, stderr=out)
            started.append(process)
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            return process

        def wait_for(found: Callable[[], str]) -> str:
            for _ in range(1200):
                if text := found():
                    return text
                if any(process.poll() is not None for process in started):
                    break
                time.sleep(0.05)
            raise SystemExit(f"a process did not start:\n{log.read_text()}")

        try:
            own, other = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
            if other is not None:
                os.sched_setaffinity(0, {other})
            launch([str(here), "--serve", str(port_file), "--words", str(options.words)], other)
            port = wait_for(lambda: port_file.read_text() if port_file.is_file() else "")
            server = f"http://127.0.0.1:{port}"
            command = ["-m", "selfverify", "serve", "--upstream", server, "--port", "0", "-n", str(options.n)]
            gateway = launch(command, own)
            line = wait_for(lambda: "".join(re.findall(r"(http://\S+)/v1 serves", log.read_text())))
            yield server, line, psutil.Process(gateway.pid)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)
            os.sched_setaffinity(0, cores)


async def watch(process: psutil.Process, sizes: list[float]) -> None:
    """Note the process's memory, in MB, ten times a second."""
    while True:
        sizes.append(process.memory_info().rss / 1e6)
        await asyncio.sleep(0.1)


def percentile(values: list[float], share: float) -> float:
    """In milliseconds."""
    return round(sorted(values)[round(share * (len(values) - 1))] * 1e3, 2)


async def measure(
    options: argparse.Namespace, server: str, gateway: str, process: psutil.Process
) -> dict[str, Any]:
    """All figures."""
    image = ""
    if options.image_kb:
        pixels = random.Random(0).randbytes(options.image_kb * 1024 // 3 * 3)
        image = png_of(pixels)
    bodies = [question(seed, image) for seed in range(options.requests)]
    chat = "/v1/chat/completions"
    before = process.memory_info().rss / 1e6
    sizes, cpu, asked, wrong = [before], 0.0, 0, 0
    latencies: dict[str, list[float]] = {"direct": [], "gateway": []}
    rates: dict[str, list[float]] = {"direct": [], "gateway": []}
    limits: list[float] = []
    json_type = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=json_type) as session:
        watching = asyncio.ensure_future(watch(process, sizes))

        async def pace(mean: float) -> None:
            async with session.post(f"{server}/pace", data=str(mean)) as response:
                response.raise_for_status()

        await pace(0.01)
        for url, n in ((server, options.n), (gateway, 0)):  # connections, and the server's replies, are there
            await ask_all(session, url + chat, bodies, options.clients, 0.1, n)
        for _ in range(options.repeats):
            await pace(options.delay)
            for name, url, n in (("direct", server, options.n), ("gateway", gateway, 0)):
                spent = sum(process.cpu_times()[:2])
                found, rate, bad = await ask_all(
                    session, url + chat, bodies, options.clients, options.delay, n
                )
                latencies[name] += found
                rates[name].append(rate)
                wrong += bad
                if name == "gateway":
                    cpu += sum(process.cpu_times()[:2]) - spent
                    asked += len(found)
            await pace(options.delay / 10)
            found, rate, bad = await ask_all(
                session, gateway + chat, bodies, options.clients, options.delay / 10, 0
            )
            limits.append(rate)
            wrong += bad
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    added = [b - a for a, b in zip(latencies["direct"], latencies["gateway"], strict=True)]
    return {
        "clients": options.clients,
        "n": options.n,
        "image_kb": options.image_kb,
        "delay_s": options.delay,
        "asked": 3 * options.repeats * len(bodies),
        "wrong": wrong,
        "direct_requests_per_s": round(statistics.median(rates["direct"]), 1),
        "requests_per_s": round(statistics.median(rates["gateway"]), 1),
        "direct_ms_p50": percentile(latencies["direct"], 0.5),
        "gateway_ms_p50": percentile(latencies["gateway"], 0.5),
        "added_ms_p50": percentile(added, 0.5),
        "added_ms_p99": percentile(added, 0.99),
        "most_requests_per_s": round(statistics.median(limits), 1),
        "most_requests_per_s_each": [round(limit, 1) for limit in limits],
        "cpu_ms_per_request": round(cpu / asked * 1e3, 2),
        "memory_mb_before": round(before, 1),
        "memory_mb_most": round(max(sizes), 1),
    }


def png_of(pixels: bytes) -> str:
    """Noise as an image that does not compress, as a data URL."""
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.frombytes("RGB", (len(pixels) // 3 // 16, 16), pixels[: len(pixels) // 48 * 48]).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On uvloop, if that is there."""
    factory = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=3000, help="of each kind, in each repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.6, help="seconds the server takes on average")
    parser.add_argument("--words", type=int, default=60, help="of each candidate's reasoning")
    parser.add_argument("-n", type=int, default=8, help="candidates")
    parser.add_argument("--image-kb", type=int, default=0, help="an image of this size in each question")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run(upstream(options.serve, options.words))
        return
    if options.requests < 3 * options.clients:
        parser.error("--requests: at least three times --clients, or they are never all busy")
    load = os.getloadavg()[0]
    with processes(options) as (server, gateway, process):
        figures = run(measure(options, server, gateway, process))
    figures |= {"load_average": [round(load, 2), round(os.getloadavg()[0], 2)], "cores": os.cpu_count()}
    for name, value in figures.items():
        print(f"{name:28} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
