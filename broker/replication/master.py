"""The master's side of replication: the HA port, and three tasks for each slave.

One task pushes the log, one reads reports, one announces changed tables. A slave that is slow,
silent or wrong harms no other: its tasks fail alone, and it connects again.
"""

from __future__ import annotations

import logging
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.broker.replication.connection_limits import HaConnectionLimits
from triomq.broker.replication.errors import (
    HaLoginRefused,
    HaTlsFailed,
    LinkBroken,
    LogsDiffer,
    ReplicationError,
)
from triomq.broker.replication.link_socket import LinkSocket
from triomq.broker.replication.login import ReplicationLogin
from triomq.broker.replication.master_link import LinkRules, LogBounds, MasterLink
from triomq.broker.replication.rates import RateMeter
from triomq.broker.replication.replicas import Replica, ReplicaSet
from triomq.broker.replication.transfer import (
    MasterHello,
    check_start,
    hello_frame,
    tables_changed_frame,
)
from triomq.broker.store.core.errors import CopyRefused, StoreIoError
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.io.reads import Buffer
from triomq.broker.store.store import MessageStore
from triomq.remoting.core import open_files
from triomq.remoting.core.address import format_address
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import ConnectionBudget, Places
from triomq.remoting.core.token_bucket import TokenBucket
from triomq.remoting.server.boss import Boss
from triomq.remoting.server.listen import open_listener

if TYPE_CHECKING:
    from triomq.broker.replication.link_tls import MasterTls  # ssl, only with TLS

logger = logging.getLogger(__name__)

PUSH_BYTES = 1024 * 1024
TABLES_GATHER_SECONDS = 0.02
NEVER_NEEDED = (1 << 63) - 1
LINK_ERRORS = (ReplicationError, CopyRefused, StoreIoError, trio.BrokenResourceError)
"""Errors that end one connection and nothing else."""
HA_BACKLOG = 64

Frames = list[tuple[int, int]]
"""[start, end) of the log for each frame."""


def open_ha_port(host: str, port: int) -> socket.socket:
    """Return a listener. Raises: AddressInUse, ListenFailed."""
    return open_listener(host, port, HA_BACKLOG, "haListenPort")


@attrs.define(eq=False)
class SlaveConnection:
    """One connected slave."""

    link: MasterLink
    link_socket: LinkSocket
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    started: trio.Event = attrs.field(factory=trio.Event)
    grown: trio.Event | None = attrs.field(default=None, init=False)
    """Set while the slave has been sent everything and its task waits for more."""
    taken: Frames = attrs.field(factory=list, init=False)
    """Frames that count as sent and that the task must send."""
    bytes_sent: int = 0
    rate: RateMeter = attrs.field(factory=lambda: RateMeter(at=trio.current_time()), init=False)

    async def send(self, pieces: Sequence[Buffer]) -> int:
        """Send the pieces; return the number of bytes."""
        size = sum(map(len, pieces))
        self.bytes_sent += size
        self.link_socket.post_all(pieces)
        await self.link_socket.drain()
        return size


@attrs.define(eq=False)
class ReplicationMaster:
    """All slaves of this broker, and what each of them has."""

    store: MessageStore
    rules: LinkRules
    replicas: ReplicaSet
    bytes_per_second: int = 0
    """Limit for each slave; 0: none."""
    awaited: bool = False
    """Whether senders wait for slaves. If so, what is stored is sent in the step that stores it."""
    busy_poll: bool = False
    """Whether to busy poll for reports if senders wait for them."""
    connection_limits: HaConnectionLimits = attrs.field(factory=HaConnectionLimits)
    places: Places = attrs.field(factory=lambda: ConnectionBudget.of_process().slaves, kw_only=True)
    """Connections that the limit of open files leaves for slaves."""
    login: ReplicationLogin | None = attrs.field(default=None, kw_only=True)
    """What slaves must know; None: everything is sent to any peer that connects."""
    tls: MasterTls | None = attrs.field(default=None, kw_only=True)
    """How connections are encrypted; None: they are not."""
    on_connection: Callable[[str, str], None] | None = attrs.field(default=None, kw_only=True)
    """Called with a peer and why it is turned away; an empty text if it is not."""
    new_link: Callable[[LinkRules, str, float], MasterLink] = attrs.field(
        default=MasterLink, kw_only=True
    )
    """Return the state of a new connection, of (rules, peer, now)."""
    on_report: Callable[[MasterLink, float], None] | None = attrs.field(default=None, init=False)
    """Called with a slave that has reported. Must not raise. Checkpoint: never."""
    on_gone: Callable[[MasterLink], None] | None = attrs.field(default=None, init=False)
    """Called when a connection has ended. Must not raise. Checkpoint: never."""
    on_acknowledged: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    """Called when a slave has reported. Must not raise. Checkpoint: never."""
    connections: list[SlaveConnection] = attrs.field(factory=list, init=False)
    _marks: dict[int, Watermark] = attrs.field(factory=dict, init=False)
    """Number of slaves -> the log offset up to which that number has had everything."""
    _tables_changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    """Tasks that wait for the next report, or until a slave leaves."""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self.store.copyable.callbacks.append(self._log_grew)
        self.store.cleaner.needed_from.append(self.needed_from)

    @property
    def bounds(self) -> LogBounds:
        """The part of the log that slaves may have: with SYNC_FLUSH only what is on the disk.

        So a master that loses power never comes back with less than its slaves have. (Java sends at
        once, and waits for disk and slaves at the same time.)
        """
        return LogBounds(self.store.first_offset, self.store.copyable.value)

    def mark(self, acknowledgements: int) -> Watermark:
        """Return the watermark of what this number of slaves has."""
        found = self._marks.get(acknowledgements)
        if found is None:
            found = self._marks[acknowledgements] = Watermark(
                self.replicas.reached(acknowledgements)
            )
        return found

    def needed_from(self) -> int:
        """Return the smallest log offset that a connected slave may still need.

        Retention deletes no more than what is before it, unless the disk is full.
        """
        bounds = self.bounds
        started = [
            connection.link
            for connection in self.connections
            if connection.link.next_offset is not None
        ]
        return min(
            (link.needs_from() for link in started if not link.too_far_behind(bounds)),
            default=NEVER_NEEDED,
        )

    def tables_changed(self) -> None:
        """Tell slaves of TrioMQ that a table has changed. Checkpoint: never."""
        event, self._tables_changed = self._tables_changed, trio.Event()
        event.set()

    async def wait_copied(self) -> None:
        """Return when every connected slave has the whole log. Checkpoint: always.

        The caller sets the deadline.
        """
        await trio.lowlevel.checkpoint()
        while any(
            replica.acknowledged < self.bounds.end for replica in self.replicas.replicas.values()
        ):
            await self._changed.park()

    async def run(self, listener: socket.socket) -> None:
        """Run the task "replication-master": accept slaves until cancelled."""
        with listener:
            async with trio.open_nursery() as nursery:
                await Boss(listener, partial(self._accept, nursery), self.places, "slaves").run()

    def _accept(self, nursery: trio.Nursery, _number: int, sock: socket.socket) -> None:
        peer = peer_text(sock)
        refusal = self.connection_limits.refusal(
            host_of(peer), (host_of(connection.link.peer) for connection in self.connections)
        )
        if not refusal and not self.places.take():
            refusal = (
                f"the limit of open files (ulimit -n, {open_files.limit()}) leaves"
                f" {self.places.most} for slaves; raise it"
            )
        if refusal or (self.tls is None and self.login is None):
            self._note_connection(peer, refusal)
        if refusal:
            sock.close()
            return
        connection = SlaveConnection(
            self.new_link(self.rules, peer, trio.current_time()), LinkSocket(sock)
        )
        self.connections.append(connection)
        nursery.start_soon(self._serve, connection, name="replication-connection")

    def _note_connection(self, peer: str, refusal: str) -> None:
        if self.on_connection is not None:
            self.on_connection(peer, refusal)
        if refusal:
            self._limit.warning(logger, "%s is turned away: %s", peer, refusal)

    async def _refusal_of_peer(self, connection: SlaveConnection) -> str:
        """Let the peer shake hands and log in; return why it is turned away, and count it."""
        if self.tls is None and self.login is None:
            return ""
        stage, refusal = "haTls", ""
        try:
            if self.tls is not None:
                connection.link_socket = await self.tls.admit(connection.link_socket)
            stage = "haAuthentication"
            if self.login is not None:
                await self.login.admit(connection.link_socket)
        except (HaTlsFailed, HaLoginRefused, trio.BrokenResourceError) as error:
            refusal = f"{stage}: {error}"
            self.connection_limits.refused[stage] += 1
        self._note_connection(connection.link.peer, refusal)
        return refusal

    async def _serve(self, connection: SlaveConnection) -> None:
        """Serve one slave from its handshake, login or first report to its end."""
        peer = connection.link.peer
        reason, refusal = "replaced by a newer connection", ""
        try:
            with connection.scope:
                refusal = await self._refusal_of_peer(connection)
                reason = refusal or await self._run_tasks(connection)
        finally:
            connection.link_socket.close()
            self.connections.remove(connection)
            self.places.leave()
            self.replicas.replicas.pop(connection.link, None)
            if self.on_gone is not None:
                self.on_gone(connection.link)
            self._changed.unpark_all()
        if connection.started.is_set():
            logger.warning(
                "slave %s is gone: %s; it had everything up to log offset %s",
                peer,
                reason,
                connection.link.acknowledged,
            )
        elif not refusal:
            self._limit.warning(
                logger, "a connection of %s to the HA port came to nothing: %s", peer, reason
            )

    async def _run_tasks(self, connection: SlaveConnection) -> str:
        """Return why the connection ended."""
        reason = ""

        async def fenced(
            run: Callable[[SlaveConnection], Awaitable[None]], scope: trio.CancelScope
        ) -> None:
            nonlocal reason
            try:
                await run(connection)
            except LINK_ERRORS as error:
                reason = reason or str(error) or "the connection broke"
                scope.cancel()

        async with trio.open_nursery() as nursery:
            tasks = {
                "read-reports": self._read_reports,
                "push": self._push,
                "announce-changes": self._announce_changes,
            }
            for name, task in tasks.items():
                nursery.start_soon(fenced, task, nursery.cancel_scope, name=f"replication-{name}")
        return reason

    # Reports

    async def _read_reports(self, connection: SlaveConnection) -> None:
        while not connection.scope.cancel_called:
            # One scope for many reports: a scope for each would cost more than reading it. The
            # deadline is moved when it has come.
            with trio.move_on_at(connection.link.heard + self.rules.silence_seconds):
                await self._read_some_reports(connection)
            connection.link.check_silence(trio.current_time())

    async def _read_some_reports(self, connection: SlaveConnection) -> None:
        """Read reports until the connection is replaced.

        The step that reads a report also answers the senders that wait for it.
        """
        link = connection.link
        while True:
            data = await connection.link_socket.receive()
            now = trio.current_time()
            if not data:
                raise LinkBroken("it closed the connection")
            named = link.name is not None
            try:
                link.receive(data, self.bounds, now)
            except LogsDiffer:
                if link.is_ours:  # it must learn that its log is another one
                    await self._send_refusal(connection)
                raise
            if connection.scope.cancel_called:
                # Replaced meanwhile: the newer connection speaks for that slave.
                return
            if link.next_offset is None and (greeting := link.take_greeting(self.bounds)):
                await connection.link_socket.send(greeting)
            if link.next_offset is not None and not connection.started.is_set():
                self._join(connection)
                nursery = trio.lowlevel.current_task().parent_nursery
                if self.awaited and self.busy_poll and nursery is not None:
                    connection.link_socket.busy_poll(nursery)
            if not named and link.name is not None:
                self._replace_older(connection)
            if link.counts:
                self._note_acknowledged(link, now)

    def _join(self, connection: SlaveConnection) -> None:
        link = connection.link
        logger.info(
            "slave %s (%s) follows from log offset %s; its log ends at %s, ours at %s",
            link.peer,
            link.kind,
            link.next_offset,
            link.acknowledged,
            self.bounds.end,
        )
        if link.too_far_behind(self.bounds):
            logger.error(
                "slave %s needs the log from offset %s on, but ours begins at %s: stop that slave,"
                " move its store directory away and start it: it copies what is left",
                link.peer,
                link.next_offset,
                self.bounds.first,
            )
        connection.started.set()

    def _note_acknowledged(self, link: MasterLink, now: float) -> None:
        replica = self.replicas.replicas.get(link)
        if replica is None:
            replica = self.replicas.replicas[link] = Replica(link.peer, link.acknowledged, now)
        replica.note_acknowledged(link.acknowledged, self.store.appended.value, now)
        replica.copied = link.copied
        for acknowledgements, mark in self._marks.items():
            mark.advance(self.replicas.reached(acknowledgements))
        for callback in self.on_acknowledged:
            callback()
        if self.on_report is not None:
            self.on_report(link, now)
        self._changed.unpark_all()

    def _replace_older(self, connection: SlaveConnection) -> None:
        """End older connections of this slave.

        One that comes back before its old connection is found dead must not count twice.
        """
        for other in self.connections:
            if other is not connection and other.link.name == connection.link.name:
                self.replicas.replicas.pop(other.link, None)
                other.scope.cancel()

    # Pushing

    async def _push(self, connection: SlaveConnection) -> None:
        link = connection.link
        await connection.started.wait()
        if link.is_ours:
            await self._send_hello(connection)
        bucket = TokenBucket(self.bytes_per_second) if self.bytes_per_second else None
        while True:
            now = trio.current_time()
            bytes_max = min(PUSH_BYTES, bucket.allowance(now)) if bucket is not None else PUSH_BYTES
            frames = connection.taken or link.take_frames(self.bounds, now, bytes_max)
            connection.taken = []
            if frames:
                pieces: list[Buffer] = []
                for run in self._runs(frames):
                    pieces += self._encoded(link, run, await self._read(run[0][0], run[-1][1]))
                size = await connection.send(pieces)
                if bucket is not None:
                    bucket.spend(size)
                await trio.lowlevel.checkpoint()
                continue
            await connection.link_socket.drain()
            assert link.next_offset is not None
            if (
                bucket is None
                and self.bounds.end > link.next_offset
                and not link.too_far_behind(self.bounds)
            ):
                # Stored while the socket was full: this task was not waiting for it.
                continue
            with trio.move_on_at(link.next_deadline()):
                if link.too_far_behind(self.bounds):
                    await trio.sleep_forever()
                elif self.bounds.end > link.next_offset and bucket is not None:
                    await trio.sleep(max(0.001, bucket.seconds_to_wait()))
                else:
                    await self._wait_grown(connection)

    async def _wait_grown(self, connection: SlaveConnection) -> None:
        """Wait until there is work that needs a task. Checkpoint: always."""
        connection.grown = trio.Event()
        try:
            await connection.grown.wait()
        finally:
            connection.grown = None

    def _log_grew(self) -> None:
        """Send new bytes to slaves that have everything else, or wake their tasks.

        It never raises: the step that stores a message calls it. Checkpoint: never.
        """
        for connection in self.connections:
            grown = connection.grown
            if grown is None or grown.is_set():
                continue  # its task is at work, and what it is about to send comes first
            if not (self.awaited and not self.bytes_per_second and self._push_now(connection)):
                grown.set()

    def _push_now(self, connection: SlaveConnection) -> bool:
        """Send the next frames; False: the task has more to do. Never raises. Checkpoint: never."""
        link, bounds = connection.link, self.bounds
        if connection.taken:
            return False
        try:
            frames = connection.taken = link.take_frames(bounds, trio.current_time(), PUSH_BYTES)
            pieces: list[Buffer] = []
            for run in self._runs(frames):
                found = self.store.log_bytes(run[0][0], run[-1][1])
                if found is None:
                    return False
                pieces += self._encoded(link, run, found)
            connection.taken = []
            data = b"".join(pieces)
            connection.bytes_sent += len(data)
            return connection.link_socket.post(data) and link.next_offset == bounds.end
        except Exception:
            # The frames stay taken, so the task meets the same error and reports it. The caller
            # stores a message, which this error does not concern.
            return False

    async def _send_hello(self, connection: SlaveConnection) -> None:
        """Send a hello, with a CRC of the bytes just before the place where the slave goes on."""
        link, bounds = connection.link, self.bounds
        end = link.acknowledged
        start = max(bounds.first, check_start(end, self.rules.segment_size))
        crc = zlib.crc32(await self._read(start, end)) if start < end else 0
        assert link.next_offset is not None
        await connection.send(
            [
                hello_frame(
                    link.next_offset,
                    MasterHello(bounds.first, bounds.end, start, crc, self.awaited),
                )
            ]
        )

    async def _send_refusal(self, connection: SlaveConnection) -> None:
        """Tell a slave of TrioMQ that is ahead where this log ends.

        An earlier TrioMQ finds that the CRC of the bytes behind that end is another one.
        """
        bounds = self.bounds
        hello = MasterHello(bounds.first, bounds.end, bounds.end, 0)
        await connection.send([hello_frame(bounds.end, hello)])

    def _runs(self, frames: Frames) -> Iterator[Frames]:
        """Group the frames by segment: one call reads those of one segment."""
        if len(frames) == 1:
            yield frames
            return
        size = self.rules.segment_size
        for _, run in groupby(frames, lambda frame: frame[0] // size):
            yield list(run)

    @staticmethod
    def _encoded(link: MasterLink, run: Frames, data: Buffer) -> list[Buffer]:
        """Return the frames with their heads, without copying the log bytes."""
        begin, view = run[0][0], memoryview(data)
        pieces: list[Buffer] = []
        for start, end in run:
            pieces += (link.head(start, end - start), view[start - begin : end - begin])
        return pieces

    async def _read(self, start: int, end: int) -> Buffer:
        if start == end:  # a heartbeat
            return b""
        found = self.store.log_bytes(start, end)
        return found if found is not None else await self.store.log_bytes_cold(start, end)

    async def _announce_changes(self, connection: SlaveConnection) -> None:
        """Announce changed tables to a slave of TrioMQ; Java's does not know such a frame."""
        await connection.started.wait()
        changed = self._tables_changed
        while connection.link.is_ours:
            await changed.wait()
            await trio.sleep(TABLES_GATHER_SECONDS)
            # Before the frame is sent: a change while it waits for room is announced by the next.
            changed = self._tables_changed
            assert connection.link.next_offset is not None
            await connection.send([tables_changed_frame(connection.link.next_offset)])


def peer_text(sock: socket.socket) -> str:
    """Return the peer's address for people."""
    try:
        return format_address(*sock.getpeername()[:2])
    except OSError:
        return "an unknown peer"


def host_of(peer: str) -> str:
    """Return the host in the text of a peer, without brackets."""
    return peer.rpartition(":")[0].strip("[]")
