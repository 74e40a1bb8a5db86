"""Which of several servers is asked for a model, and which one when that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from selfverify.core.errors import ServerError
from selfverify.remote.connection import FAULTS, Connection

LISTED_S = 60.0
"""Seconds after which a server is asked again which models it has."""

LIST_AGAIN_S = 2.0
"""Seconds after which it is, when a model is asked for that no server has."""

REST_S = 5.0
"""Seconds for which a server that failed is asked only where the others fail too."""

PROBE_S = 2.0
"""Seconds in which a server has to list its models."""


@dataclass(slots=True)
class Route:
    """A server, and what is known of it.

    Args:
        connection: The server.
        listed: The models that it listed last; None before it did, or if it lists none.
        asked_at: When it was asked for them last.
        rests_until: Until when the others are preferred.
    """

    connection: Connection
    listed: frozenset[str] | None = None
    asked_at: float | None = None
    rests_until: float = 0.0

    @property
    def models(self) -> frozenset[str] | None:
        """The models that the server is asked for; None if it is not known which it has."""
        given = self.connection.settings.models
        return self.listed if given is None else frozenset(given)


class Router:
    """Finds the servers that have a model.

    A server has the models of its settings, or those that it lists. The first server that has a model is
    asked; those that failed a moment ago stand behind the others. One server alone without such settings is
    asked for everything. Servers of which it is not known what they have are asked last.

    Args:
        connections: The servers, in the order in which they are preferred.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, connections: Sequence[Connection], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.routes = [Route(connection) for connection in connections]
        self._clock = clock
        self._listing: dict[str, asyncio.Task[str | None]] = {}

    async def to(self, model: str) -> list[Connection]:
        """Return the servers to ask for a model, best first; at least one.

        Raises:
            ServerError: No server has it.
        """
        if len(self.routes) == 1 and self.routes[0].models is None:
            return [self.routes[0].connection]
        await self._list_all([route for route in self._open_ones() if route.asked_at is None])
        if not self._having(model):
            await self._list_all(self._older_than(LIST_AGAIN_S))
        for route in self._older_than(LISTED_S):
            self._list(route)  # nobody waits for it
        # A server that lists nothing, or has not answered yet, may have it.
        unknown = [route for route in self.routes if route.models is None]
        found = self._having(model) + unknown
        if not found:
            names = ", ".join(route.connection.name for route in self.routes)
            text = f"the model {model!r} does not exist: none of the servers has it ({names})"
            raise ServerError(text, 404, "model_not_found")
        now = self._clock()
        return [route.connection for route in sorted(found, key=lambda route: route.rests_until > now)]

    def failed(self, connection: Connection, error: ServerError) -> None:
        """Note that a server failed: for a while the others are preferred."""
        if error.status == 429:
            rest = error.retry_after if error.retry_after is not None else 1.0
        else:
            rest = REST_S if error.status >= 500 and error.code != "bad_reply" else 0.0
        self._route(connection).rests_until = self._clock() + rest

    def worked(self, connection: Connection) -> None:
        """Note that a server answered."""
        self._route(connection).rests_until = 0.0

    async def ready(self) -> dict[str, str | None]:
        """Ask all servers now; return by name what is wrong with each, None for those that answer."""
        faults = await self._list_all(self.routes)
        return {route.connection.name: fault for route, fault in zip(self.routes, faults, strict=True)}

    async def close(self) -> None:
        """Ask no server any more."""
        tasks = list(self._listing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _route(self, connection: Connection) -> Route:
        return next(route for route in self.routes if route.connection is connection)

    def _having(self, model: str) -> list[Route]:
        return [route for route in self.routes if route.models is not None and model in route.models]

    def _open_ones(self) -> list[Route]:
        return [route for route in self.routes if route.connection.settings.models is None]

    def _older_than(self, seconds: float) -> list[Route]:
        """Return the servers whose lists are older. One that has given none is asked sooner."""
        now = self._clock()
        return [
            route
            for route in self._open_ones()
            if route.asked_at is None
            or now - route.asked_at >= (LIST_AGAIN_S if route.listed is None else seconds)
        ]

    async def _list_all(self, routes: Sequence[Route]) -> list[str | None]:
        return await asyncio.gather(*map(self._list, routes))

    def _list(self, route: Route) -> asyncio.Task[str | None]:
        """Let a server list its models, once for all who ask meanwhile."""
        name = route.connection.name
        if name not in self._listing:
            self._listing[name] = task = asyncio.create_task(self._listed(route))
            task.add_done_callback(lambda _: self._listing.pop(name, None))
        return self._listing[name]

    async def _listed(self, route: Route) -> str | None:
        """Ask a server for its models; return what is wrong with it. One that has no list answers, too."""
        connection, route.asked_at = route.connection, self._clock()
        try:
            with connection.errors():
                async with asyncio.timeout(PROBE_S):
                    found = await connection.models({})
        except ServerError as error:
            if error.status in (404, 405, 501):
                return None
            return error.code if error.code in FAULTS else f"refused ({error.status})"
        route.listed = frozenset(str(model["id"]) for model in found)
        return None
