"""What the gateway costs under load: 200 clients, a model server with realistic delays, n = 8.

    python benchmarks/gateway_load.py

Three processes: a fake model server, ``selfverify serve --upstream`` in front of it, the clients (this one).
Each client asks again as soon as it was answered. A question's seed decides how long the server takes and
what its candidates say, so the same question can be asked directly and through the gateway, and the
difference of the two latencies is what was added. Both ways take turns, in the same run. Every answer is
checked: it has to be the one that wins the vote. What two direct passes differ by is what a machine's noise
adds.

A second part asks with a server that is ten times as quick, to see how many requests a second the gateway
can do at most: plainly, in streams, with scores read softly, and with a server that ignores ``n``. The same
load is put on the bare server, whose rate is what clients and server can do.
Where there are two cores or more, the gateway has one and server and clients another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from fake_model_server import loop_factory, winner

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stream": {"stream": True},
    "soft": {"best_of": {"verifier": "soft"}},
    "n_ignored": {},
}
"""The kinds of requests, by what is added to one."""

_CONTENT = re.compile(rb'"content": ?"([^"]*)"')


def question(number: int, more: dict[str, Any]) -> bytes:
    """A request."""
    messages = [{"role": "user", "content": "What do both numbers in this picture add up to?"}]
    return json.dumps({"model": "m", "seed": number * 100, "n": 1, "messages": messages, **more}).encode()


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
            text = b"".join(_CONTENT.findall(raw)) if response.status == 200 else b""
            wrong += f"<answer>{winner(i)}</answer>".encode() not in text
        return None

    await asyncio.gather(*(client(pause * k / clients) for k in range(clients)))
    middle = sorted(ends)[clients : len(ends) - clients]
    return latency, (len(middle) - 1) / (middle[-1] - middle[0]), wrong


@contextmanager
def processes(words: int, serve: list[str]) -> Iterator[tuple[str, str, psutil.Process]]:
    """The addresses of model server and gateway, and the gateway's process.

    Args:
        words: Of each candidate's reasoning.
        serve: The gateway's options, of which ``SERVER`` stands for the model server's address.
    """
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
            server_file = here.with_name("fake_model_server.py")
            launch([str(server_file), str(port_file), str(words)], other)
            port = wait_for(lambda: port_file.read_text() if port_file.is_file() else "")
            server = f"http://127.0.0.1:{port}"
            given = [server if word == "SERVER" else word for word in serve]
            gateway = launch(["-m", "selfverify", "serve", "--port", "0", *given], own)
            line = wait_for(lambda: "".join(re.findall(r"(http://\S+)/v1 serves", log.read_text())))
            yield server, line, psutil.Process(gateway.pid)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)
            os.sched_setaffinity(0, cores)


def percentile(values: list[float], share: float) -> float:
    """In milliseconds."""
    return round(sorted(values)[round(share * (len(values) - 1))] * 1e3, 2)


async def measure(
    options: argparse.Namespace, server: str, gateway: str, process: psutil.Process
) -> dict[str, Any]:
    """All figures."""
    bodies = {
        kind: [question(number, more) for number in range(options.requests)] for kind, more in KINDS.items()
    }
    chat = "/v1/chat/completions"
    cpu, asked, wrong = 0.0, 0, 0
    latencies: dict[str, list[float]] = {"direct": [], "gateway": [], "again": []}
    rates: dict[str, list[float]] = {"direct": [], "gateway": [], "again": []}
    most: dict[str, dict[str, Any]] = {}
    json_type = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=json_type) as session:

        async def behave(mean: float, knows_n: bool = True) -> int:
            async with session.post(f"{server}/behave", json={"mean": mean, "knows_n": knows_n}) as response:
                return int((await response.json())["sent"])

        async def put(url: str, n: int, kind: str, pause: float) -> tuple[list[float], float]:
            nonlocal wrong, asked
            found, rate, bad = await ask_all(session, url + chat, bodies[kind], options.clients, pause, n)
            wrong, asked = wrong + bad, asked + len(found)
            return found, rate

        await behave(0.01)
        for url, n in ((server, options.n), (gateway, 0)):  # connections, and the server's replies, are there
            await put(url, n, "plain", 0.1)
        for _ in range(options.repeats):
            await behave(options.delay)
            for name, url, n in (
                ("direct", server, options.n),
                ("gateway", gateway, 0),
                ("again", server, options.n),
            ):
                spent = sum(process.cpu_times()[:2])
                found, rate = await put(url, n, "plain", options.delay)
                latencies[name] += found
                rates[name].append(rate)
                if name == "gateway":
                    cpu += sum(process.cpu_times()[:2]) - spent
        for kind in KINDS:
            quick, knows_n = options.delay / 10, kind != "n_ignored"
            await behave(quick, knows_n)
            await put(gateway, 0, kind, quick)  # what the server knows is found out, its replies are there
            _, direct = await put(server, options.n, kind, quick)
            spent, sent = sum(process.cpu_times()[:2]), await behave(quick, knows_n)
            _, rate = await put(gateway, 0, kind, quick)
            spent, sent = sum(process.cpu_times()[:2]) - spent, await behave(quick, knows_n) - sent
            most[kind] = {
                "direct_requests_per_s": round(direct, 1),
                "requests_per_s": round(rate, 1),
                "cpu_ms_per_request": round(spent / options.requests * 1e3, 2),
                "read_kb_per_request": round(sent / options.requests / 1e3, 1),
            }
    added = [b - a for a, b in zip(latencies["direct"], latencies["gateway"], strict=True)]
    noise = [b - a for a, b in zip(latencies["direct"], latencies["again"], strict=True)]
    return {
        "clients": options.clients,
        "n": options.n,
        "delay_s": options.delay,
        "asked": asked,
        "wrong": wrong,
        "direct_requests_per_s": round(statistics.median(rates["direct"]), 1),
        "requests_per_s": round(statistics.median(rates["gateway"]), 1),
        "direct_ms_p50": percentile(latencies["direct"], 0.5),
        "gateway_ms_p50": percentile(latencies["gateway"], 0.5),
        "added_ms_p50": percentile(added, 0.5),
        "added_ms_p99": percentile(added, 0.99),
        "noise_ms_p50": percentile(noise, 0.5),
        "noise_ms_p99": percentile(noise, 0.99),
        "cpu_ms_per_request": round(cpu / options.repeats / options.requests * 1e3, 2),
        "at_most": most,
    }


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
    options = parser.parse_args()
    if options.requests < 3 * options.clients:
        parser.error("--requests: at least three times --clients, or they are never all busy")
    serve = ["--upstream", "SERVER", "-n", str(options.n)]
    with (
        processes(options.words, serve) as (server, gateway, process),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        figures = runner.run(measure(options, server, gateway, process))
    for name, value in figures.items():
        print(f"{name:28} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
