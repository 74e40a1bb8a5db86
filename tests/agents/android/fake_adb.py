"""An adb server, with phones behind it, that speaks adb's wire protocol: real clients use it.

Requests are four hexadecimal digits of length and a text; answers are ``OKAY`` or ``FAIL`` with a text. After
``host:tport`` or ``host:transport`` a connection belongs to a device, and `Phone` answers its commands.
"""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agents.android.phones import Phone


class Server(socketserver.ThreadingTCPServer):
    """Serves phones by serial number.

    Args:
        phones: The phones.
        version: What the server says it speaks.
    """

    request_queue_size = 128

    def __init__(self, phones: dict[str, Phone], version: int = 41) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.phones, self.version = phones, version
        self.requests: list[str] = []
        self.garbage = False
        """Whether it answers as no adb server does."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Connection(socketserver.StreamRequestHandler):
    """One connection of a client."""

    server: Server

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            phone: Phone | None = None
            while (request := self._request()) is not None:
                self.server.requests.append(request)
                if self.server.garbage:
                    self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    return
                if phone is None:
                    phone, more = self._host(request)
                else:
                    self._device(phone, request)
                    more = False
                if not more:
                    return

    def _request(self) -> str | None:
        length = self.rfile.read(4)
        return self.rfile.read(int(length, 16)).decode() if len(length) == 4 else None

    def _say(self, text: bytes, block: str | None = None) -> None:
        payload = b"" if block is None else f"{len(block.encode()):04x}{block}".encode()
        self.wfile.write(text + payload)
        self.wfile.flush()

    def _host(self, request: str) -> tuple[Phone | None, bool]:
        """Answer a request to the server; the phone that the connection then belongs to."""
        if request == "host:version":
            self._say(b"OKAY", f"{self.server.version:04x}")
            return None, False
        if request in ("host:devices", "host:devices-l"):
            self._say(b"OKAY", "".join(f"{s}\t{p.state}\n" for s, p in self.server.phones.items()))
            return None, False
        if request in ("host:features", "host:host-features"):
            self._say(b"OKAY", "shell_v2,cmd")
            return None, False
        for prefix, tport in (("host:tport:serial:", True), ("host:transport:", False)):
            if request.startswith(prefix):
                phone = self._phone(request.removeprefix(prefix))
                if phone is not None:
                    self._say(b"OKAY" + (struct.pack("<Q", 7) if tport else b""))
                return phone, phone is not None
        if request.startswith("host-serial:"):
            serial, _, what = request.removeprefix("host-serial:").rpartition(":")
            if (phone := self._phone(serial, any_state=what == "get-state")) is not None:
                answers = {"get-state": phone.state, "features": "shell_v2,cmd"}
                self._say(b"OKAY", answers[what]) if what in answers else self._say(b"FAIL", "unknown")
            return None, False
        self._say(b"FAIL", f"unknown host service '{request}'")
        return None, False

    def _phone(self, serial: str, any_state: bool = False) -> Phone | None:
        phone = self.server.phones.get(serial)
        if phone is None:
            self._say(b"FAIL", f"device '{serial}' not found")
        elif phone.state != "device" and not any_state:
            self._say(b"FAIL", f"device {phone.state}")
        else:
            return phone
        return None

    def _device(self, phone: Phone, request: str) -> None:
        """Answer a request to a phone."""
        service, _, command = request.partition(":")
        if phone.deaf:
            time.sleep(phone.deaf)
            return
        self._say(b"OKAY")
        if service == "root":
            self.wfile.write(phone.restart_as_root().encode())
        elif service == "exec":
            self.wfile.write(phone.run(command)[0])
        elif service == "shell":
            output, _ = phone.run(command)
            self.wfile.write(output[: len(output) // 2] if phone.cut_off else output)
        elif service.startswith("shell,v2"):
            output, code = phone.run(command)
            self.wfile.write(struct.pack("<BI", 1, len(output)) + output + struct.pack("<BIB", 3, 1, code))
        self.wfile.flush()


@contextlib.contextmanager
def serving(server: socketserver.ThreadingTCPServer) -> Iterator[Any]:
    """Serve in a thread that is gone at the end."""
    server.daemon_threads, server.block_on_close = True, False
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def adb_server(phones: dict[str, Phone], version: int = 41) -> Iterator[Server]:
    """A server in a thread, gone at the end."""
    with serving(Server(phones, version)) as server:
        yield server


@dataclass
class Console:
    """The console of an emulator: what it was told, and what it answers."""

    port: int = 0
    told: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def emulator_console(word: str | None, on_load: Any = None) -> Iterator[Console]:
    """A console that asks for ``word``; ``on_load`` is called with the name of a snapshot."""
    console = Console()

    class Talk(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asks = "Android Console: Authentication required\r\n" if word is not None else ""
            self.wfile.write(f"{asks}Android Console: type 'help'\r\nOK\r\n".encode())
            for line in self.rfile:
                command = line.decode().strip()
                console.told.append(command)
                answer = console.answers.get(command, "OK")
                if command.startswith("auth ") and command != f"auth {word}":
                    answer = "KO: authentication token does not match"
                if command.startswith("avd snapshot load ") and answer == "OK" and on_load:
                    on_load(command.rpartition(" ")[2])
                self.wfile.write(f"{answer}\r\n".encode())

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk)) as server:
        console.port = server.server_address[1]
        yield console
