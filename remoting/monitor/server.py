"""Answers probes and scrapers on a port of its own, beside the service and off its request path.

The owner opens it before anything that takes time and says what it is doing (`Monitor.phase`), then what it knows (`Monitor.source`).  A
scrape is put together family by family with a checkpoint in between, so that a large page holds up nobody.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Protocol

import attrs
import trio

from triomq.remoting.address import format_address
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.monitor.http import JSON, BadRequest, HttpAnswer, HttpRequest, read_request
from triomq.remoting.monitor.metrics import CONTENT_TYPE, Family, counter, family_text, gauge
from triomq.remoting.monitor.process import process_figures
from triomq.remoting.monitor.seats import Seat, Seats
from triomq.remoting.monitor.settings import MonitorSettings
from triomq.remoting.server.listen import open_listener

_log = logging.getLogger(__name__)

REQUEST_SECONDS_MAX = 5.0
CONNECTIONS_MAX = 32
"""Connections at once; see `Seats` for what happens to one more."""
_BACKLOG = 64


class Source(Protocol):
    """What a running service tells its monitor.  No method has a checkpoint."""

    def labels(self) -> Mapping[str, str]:
        """Labels of every sample."""

    def not_ready(self) -> str | None:
        """Why clients should not be sent here now; None when they may be."""

    def status(self) -> Mapping[str, Any]:
        """Facts for people, as JSON."""

    def figures(self) -> Iterator[Family]:
        """All metrics but those of the process."""


@attrs.define(eq=False)
class Monitor:
    """What the probes are told."""

    program: str
    phase: str = "starting"
    """what the service does as long as it is not `serving`"""
    source: Source | None = None
    serving: bool = False
    started: float = attrs.field(factory=lambda: time.time())
    limit: LogLimit = attrs.field(factory=LogLimit)
    seats: Seats = attrs.field(factory=lambda: Seats(CONNECTIONS_MAX), init=False)

    def serve(self, source: Source) -> None:
        """From now on requests are answered."""
        self.source, self.serving = source, True

    def leave(self, phase: str = "stopping") -> None:
        """From now on clients should go elsewhere."""
        self.phase, self.serving = phase, False

    def not_ready(self) -> str | None:
        if not self.serving or self.source is None:
            return self.phase
        return self.source.not_ready()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request.  Checkpoints while a page of metrics grows."""
        match request.path:
            case "/live":
                return HttpAnswer(HTTPStatus.OK, b"live\n")
            case "/ready":
                reason = self.not_ready()
                if reason is None:
                    return HttpAnswer(HTTPStatus.OK, b"ready\n")
                return HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}\n".encode())
            case "/status":
                return HttpAnswer(HTTPStatus.OK, json.dumps(self._status(), ensure_ascii=False).encode() + b"\n", JSON)
            case "/metrics":
                return HttpAnswer(HTTPStatus.OK, (await self._metrics()).encode(), CONTENT_TYPE)
        return HttpAnswer(HTTPStatus.NOT_FOUND, b"there are /live, /ready, /status and /metrics\n")

    def _status(self) -> dict[str, Any]:
        reason = self.not_ready()
        facts = dict(self.source.status()) if self.source is not None else {}
        return {"program": self.program, "ready": reason is None, "reason": reason, "uptimeSeconds": round(time.time() - self.started, 1), **facts}

    async def _metrics(self) -> str:
        common = dict(self.source.labels()) if self.source is not None else {}
        page = []
        for family in self._families():
            page.append(family_text(family, common))
            await trio.lowlevel.checkpoint()
        return "".join(page)

    def _families(self) -> Iterator[Family]:
        yield gauge("triomq_ready", "1 when clients may be sent here.", self.not_ready() is None)
        yield counter("triomq_monitor_connections_closed_total", "Connections to this port that were closed to make room for others.", self.seats.closed)
        yield from process_figures(self.started)
        if self.source is not None:
            yield from self.source.figures()

    async def talk(self, stream: trio.SocketStream) -> None:
        """Serve one connection: read a request, answer it, close.  What goes wrong here concerns no other connection."""
        async with stream:
            with trio.move_on_after(REQUEST_SECONDS_MAX) as scope:
                seat = Seat(scope.cancel)
                if self.seats.take(seat):
                    self.limit.log(_log, logging.WARNING, "%d connections to the monitor port at once: one that has not asked makes room", CONNECTIONS_MAX)
                try:
                    await self._talk(stream, seat)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # a scraper that has gone
                except Exception as error:
                    self.limit.log(_log, logging.ERROR, "a probe or a scrape failed", error=error)
                finally:
                    self.seats.leave(seat)

    async def _talk(self, stream: trio.SocketStream, seat: Seat) -> None:
        data = bytearray()
        try:
            while (request := read_request(data)) is None:
                chunk = await stream.receive_some(4096)
                if not chunk:
                    return
                data += chunk
            seat.asked = True
            answer = await self.answer(request)
            await stream.send_all(answer.encode(head=request.head))
        except BadRequest as error:
            await stream.send_all(HttpAnswer(error.status, f"{error}\n".encode()).encode())

    async def run(self, settings: MonitorSettings, *, task_status: trio.TaskStatus[int]) -> None:
        """Listen until cancelled; `started(port)`.  Raises AddressInUse or ListenFailed."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(open_listener(settings.host, settings.port, _BACKLOG, "monitorPort")))
        async with trio.open_nursery() as nursery:
            task_status.started(listener.socket.getsockname()[1])
            await trio.serve_listeners(self.talk, [listener], handler_nursery=nursery)


@asynccontextmanager
async def monitoring(settings: MonitorSettings, program: str) -> AsyncIterator[Monitor]:
    """Answer probes for the block, if the settings name a port.  Raises AddressInUse or ListenFailed before the block."""
    monitor = Monitor(program)
    if not settings.port:
        yield monitor
        return
    async with trio.open_nursery() as nursery:
        port = await nursery.start(monitor.run, settings, name="monitor")
        _log.info("probes and metrics on http://%s", format_address(settings.host, port))
        yield monitor
        nursery.cancel_scope.cancel()
