"""Answer probes and scrapers on a port of their own, beside the service and off its request path.

The service opens the port before any slow step of its start, names that step in ``Monitor.phase``,
and sets ``Monitor.source`` when it has figures. A scrape is assembled in pieces of a few
milliseconds with a checkpoint in between, so that a large page delays no other task.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Protocol

import attrs
import trio

from triomq.remoting.audit.audit_entry import AuditEntry
from triomq.remoting.audit.decision_log import DecisionLog
from triomq.remoting.core.address import format_address
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import ConnectionBudget
from triomq.remoting.monitor.export import Export
from triomq.remoting.monitor.export_settings import ExportSettings
from triomq.remoting.monitor.http import JSON, BadRequest, HttpAnswer, HttpRequest, read_request
from triomq.remoting.monitor.loop_lag import LoopLag
from triomq.remoting.monitor.metrics import CONTENT_TYPE, Family, family, page_pieces, with_left_out
from triomq.remoting.monitor.monitor_connections import MonitorConnection, MonitorConnections
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.monitor.program_figures import open_file_figures, process_figures
from triomq.remoting.server.boss import Boss
from triomq.remoting.server.listen import open_listener, warn_if_open

_log = logging.getLogger(__name__)

REQUEST_SECONDS_MAX = 5.0
CONNECTIONS_MAX = 32
"""Connections at once, fewer if the limit of open files is low."""
GZIP_LEVEL = 1
"""the quickest: 100,000 series shrink from 13 MB to 0.6 MB, for 15 % of the time that they take"""
GZIP_WBITS = 31
"""zlib's number for gzip's format with the largest window"""
_BACKLOG = 64
OPEN_FIX = "set monitorToken, or monitorAddress to an address that only the monitoring reaches"
GUARDED = ("/status", "/metrics")
"""Pages that ask for a token if there is one."""


class MonitorSource(Protocol):
    """What a monitor asks a running service. Checkpoint: never, but for ``refresh``."""

    async def refresh(self, series_max: int) -> None:
        """Read what figures need from the disk, for at most this number of series of a metric.

        Checkpoint: always.
        """

    def labels(self) -> Mapping[str, str]:
        """Return the labels of every sample."""

    def not_ready(self) -> str | None:
        """Return why clients should not use this server now; None if they may."""

    def status(self) -> Mapping[str, object]:
        """Return facts for people, as JSON."""

    def figures(self) -> Iterator[Family]:
        """Return all metrics except those of the process."""


@attrs.define(eq=False)
class Monitor:
    """The answers to probes; ``budget``: that of the process, whose figures they contain."""

    program: str
    phase: str = "starting"
    """what the service does while it is not ``serving``"""
    source: MonitorSource | None = None
    serving: bool = False
    started: float = attrs.field(factory=lambda: time.time())
    _begun: float = attrs.field(factory=lambda: time.monotonic(), init=False)
    limit: LogLimit = attrs.field(factory=LogLimit)
    budget: ConnectionBudget = attrs.field(factory=ConnectionBudget.of_process, kw_only=True)
    series_max: int = attrs.field(default=10_000, kw_only=True)
    token: str = attrs.field(default="", kw_only=True, repr=False)
    """What pages other than probes ask for."""
    audit: DecisionLog | None = attrs.field(default=None, kw_only=True)
    warns: bool = attrs.field(default=True, kw_only=True)
    """Whether the start warns of a port that everybody may read."""
    loop: LoopLag = attrs.field(factory=LoopLag, kw_only=True)
    export: Export = attrs.field(factory=lambda: Export(ExportSettings()), kw_only=True)
    scrape_seconds: float = attrs.field(default=0.0, init=False)
    """What the last page took, other tasks included."""
    accepted: MonitorConnections = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.accepted = MonitorConnections(min(CONNECTIONS_MAX, self.budget.probes.most))

    def serve(self, source: MonitorSource) -> None:
        """Report ready from now on."""
        self.source, self.serving = source, True

    def leave(self, phase: str = "stopping") -> None:
        """Report not ready from now on: clients should go elsewhere."""
        self.phase, self.serving = phase, False

    def not_ready(self) -> str | None:
        if not self.serving or self.source is None:
            return self.phase
        return self.source.not_ready()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request. Checkpoint: maybe."""
        if request.path in GUARDED and not self._may_read(request):
            remark = b"send the token of monitorToken: Authorization: Bearer TOKEN\n"
            return HttpAnswer(HTTPStatus.UNAUTHORIZED, remark)
        match request.path:
            case "/live":
                return HttpAnswer(HTTPStatus.OK, b"live\n")
            case "/ready":
                reason = self.not_ready()
                if reason is None:
                    return HttpAnswer(HTTPStatus.OK, b"ready\n")
                return HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}\n".encode())
            case "/status":
                return HttpAnswer(
                    HTTPStatus.OK,
                    json.dumps(self._status(), ensure_ascii=False).encode() + b"\n",
                    JSON,
                )
            case "/metrics":
                page = await self._metrics(gzip=request.gzip)
                return HttpAnswer(HTTPStatus.OK, b"", CONTENT_TYPE, page, request.gzip)
        return HttpAnswer(HTTPStatus.NOT_FOUND, b"there are /live, /ready, /status and /metrics\n")

    def _may_read(self, request: HttpRequest) -> bool:
        return not self.token or hmac.compare_digest(request.token, self.token.encode())

    def _status(self) -> dict[str, object]:
        reason = self.not_ready()
        facts = dict(self.source.status()) if self.source is not None else {}
        return {
            "program": self.program,
            "ready": reason is None,
            "reason": reason,
            "uptimeSeconds": round(time.monotonic() - self._begun, 1),
            **facts,
        }

    async def _metrics(self, *, gzip: bool) -> list[bytes]:
        begun = time.perf_counter()
        packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WBITS) if gzip else None
        families = await self.families()
        page = []
        for piece in page_pieces(families, self.labels(), time.perf_counter):
            text = piece.encode()
            page.append(text if packer is None else packer.compress(text))
            await trio.lowlevel.checkpoint()
        if packer is not None:
            page.append(packer.flush())
        self.scrape_seconds = time.perf_counter() - begun
        return page

    def labels(self) -> Mapping[str, str]:
        """Return the labels of every sample."""
        own = dict(self.export.settings.labels)
        return {**own, **self.source.labels()} if self.source is not None else own

    async def families(self) -> Iterator[Family]:
        """Return all metrics; iterate over them in steps, for they may be many.

        Checkpoint: always.
        """
        if self.source is not None:
            await self.source.refresh(self.series_max)
        else:
            await trio.lowlevel.checkpoint()
        return with_left_out(self._families(), self.series_max)

    def _families(self) -> Iterator[Family]:
        yield family("triomq_ready", self.not_ready() is None)
        yield family("triomq_monitor_connections_closed_total", self.accepted.closed)
        yield family("triomq_scrape_duration_seconds", self.scrape_seconds)
        yield from process_figures(self.started)
        yield from self.loop.figures()
        yield from self.export.figures()
        yield from open_file_figures(self.budget)
        if self.source is not None:
            yield from self.source.figures()

    async def talk(self, stream: trio.SocketStream) -> None:
        """Serve one connection: read a request, answer it, close. Errors affect no other."""
        async with stream:
            with trio.move_on_after(REQUEST_SECONDS_MAX) as scope:
                connection = MonitorConnection(scope.cancel)
                if self.accepted.admit(connection):
                    self.limit.warning(
                        _log,
                        "%d connections to the monitor port at once: one that has not asked makes"
                        " room",
                        self.accepted.count,
                    )
                try:
                    await self._talk(stream, connection)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the scraper has closed the connection
                except Exception as error:
                    self.limit.log(_log, logging.ERROR, "a probe or a scrape failed", error=error)
                finally:
                    self.accepted.release(connection)

    async def _talk(self, stream: trio.SocketStream, connection: MonitorConnection) -> None:
        data = bytearray()
        try:
            while (request := read_request(data)) is None:
                chunk = await stream.receive_some(4096)
                if not chunk:
                    return
                data += chunk
            connection.asked = True
            answer = await self.answer(request)
            if self.audit is not None and request.path in GUARDED:
                self._note(self.audit, request.path, _peer_of(stream), answer)
            await stream.send_all(answer.encode(head=True))
            if not request.head:
                for piece in (answer.body, *answer.rest):
                    await stream.send_all(piece)
        except BadRequest as error:
            await stream.send_all(HttpAnswer(error.status, f"{error}\n".encode()).encode())

    def _note(self, audit: DecisionLog, path: str, peer: str, answer: HttpAnswer) -> None:
        allowed = answer.status is not HTTPStatus.UNAUTHORIZED
        if allowed and not audit.sampled():
            return
        why = "monitorToken" if self.token else "monitorToken is empty"
        audit.note(AuditEntry(door="http", what=path, peer=peer, allowed=allowed, why=why))

    async def run(self, settings: MonitorSettings, *, task_status: trio.TaskStatus[int]) -> None:
        """Listen until cancelled; ``started(port)``. Raises: AddressInUse or ListenFailed."""
        with open_listener(settings.host, settings.port, _BACKLOG, "monitorPort") as listener:
            if not settings.token and self.warns:
                warn_if_open(listener, "read /status and /metrics", OPEN_FIX)
            async with trio.open_nursery() as nursery:
                task_status.started(listener.getsockname()[1])
                await Boss(
                    listener, partial(self._deal, nursery), self.budget.probes, "probes"
                ).run()

    def _deal(self, nursery: trio.Nursery, _number: int, sock: socket.socket) -> None:
        nursery.start_soon(self.talk, trio.SocketStream(trio.socket.from_stdlib_socket(sock)))


def _peer_of(stream: trio.SocketStream) -> str:
    try:
        return format_address(*stream.socket.getpeername()[:2])
    except OSError:  # it has closed the connection
        return "unknown"


@asynccontextmanager
async def monitoring(
    settings: MonitorSettings,
    program: str,
    budget: ConnectionBudget | None = None,
    exports: ExportSettings | None = None,
    audit: DecisionLog | None = None,
    *,
    warns: bool = True,
) -> AsyncIterator[Monitor]:
    """Answer probes and push metrics during the block, if the settings name a port or a collector.

    Raises: AddressInUse or ListenFailed, ConfigError, before the block.
    """
    exports = exports or ExportSettings()
    settings = exports.monitor(settings)
    monitor = Monitor(
        program,
        budget=budget or ConnectionBudget.of_process(),
        series_max=settings.series_max,
        token=settings.token,
        export=Export(exports),
        audit=audit,
        warns=warns,
    )
    push = await monitor.export.open(program)
    if not settings.port and push is None:
        yield monitor
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(monitor.loop.measure_lag, name="loop-lag")
        if push is not None:
            nursery.start_soon(monitor.export.run, monitor, push, name="otlp-export")
            _log.info("metrics go to %s", push.endpoint)
        if settings.port:
            port = await nursery.start(monitor.run, settings, name="monitor")
            _log.info("probes and metrics on http://%s", format_address(settings.host, port))
        yield monitor
        nursery.cancel_scope.cancel()
