"""Routes: what name servers say of a topic, for the few services that look beyond this broker."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from triomq.broker.services.registration import Caller
from triomq.remoting.client.name_servers import NameServers
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader

ROUTE_SECONDS = 5.0
"""Age at which a route is asked for again."""
CALL_SECONDS = 3.0
INLINE_BYTES_MAX = 16 * 1024
"""Longer routes are decoded in a thread."""
ROUTES_MAX = 4096
"""Routes that are kept; one more forgets all."""


@attrs.define(eq=False)
class Routes:
    """Routes that were asked for, for a few seconds."""

    name_servers: Iterable[str]
    caller: Caller
    _names: NameServers | None = attrs.field(default=None, init=False)
    _found: dict[str, tuple[float, TopicRoute]] = attrs.field(factory=dict, init=False)

    async def find(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if no name server has it. Checkpoint: maybe."""
        asked, route = self._found.get(topic, (float("-inf"), None))
        if route is not None and trio.current_time() < asked + ROUTE_SECONDS:
            return route
        names = self._names_now()
        if names is None:
            return None
        deadline = trio.current_time() + CALL_SECONDS * len(names.addresses)
        for turn in names.turns(trio.current_time, deadline, {}):
            try:
                answer = await self.caller.invoke(
                    turn.address,
                    request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic)),
                    timeout=min(turn.seconds, CALL_SECONDS),
                )
                if answer.code != ResponseCode.SUCCESS:
                    turn.answered = True
                    continue
                body = bytes(answer.body)
                found = (
                    TopicRoute.decode(body)
                    if len(body) <= INLINE_BYTES_MAX
                    else await trio.to_thread.run_sync(TopicRoute.decode, body)
                )
            except (RemotingError, ValueError):
                continue
            names.answered(turn.address)
            if len(self._found) >= ROUTES_MAX:
                self._found.clear()
            self._found[topic] = trio.current_time(), found
            return found
        return None

    def _names_now(self) -> NameServers | None:
        """Return the present name servers: the list may change; None without any."""
        addresses = list(self.name_servers)
        if not addresses:
            return None
        if self._names is None:
            self._names = NameServers(addresses)
        elif addresses != self._names.addresses:
            self._names.replace(addresses)
        return self._names

    def forget(self, topic: str) -> None:
        """Ask again at the next look: no broker of the route took a message."""
        self._found.pop(topic, None)
