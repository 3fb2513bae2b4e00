"""The master's side: the HA port, and two tasks for each slave, one that pushes the log and one that reads reports.

A slave that is slow, silent or wrong costs nobody else anything: its tasks fail alone, and it connects again.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from triomq.broker.replication.errors import LinkBroken, ReplicationError
from triomq.broker.replication.master_link import LinkRules, LogBounds, MasterLink
from triomq.broker.replication.pace import Pace, Speed
from triomq.broker.replication.replicas import Replica, ReplicaSet
from triomq.broker.replication.transfer import MasterHello, check_start, frame_head, hello_frame, tables_changed_frame
from triomq.broker.replication.turns import SendTurns
from triomq.broker.store.errors import CopyRefused, StoreIoError
from triomq.broker.store.reads import Buffer
from triomq.broker.store.store import MessageStore
from triomq.broker.store.watermark import Watermark
from triomq.remoting.log_limit import LogLimit

logger = logging.getLogger(__name__)

PUSH_BYTES = 1024 * 1024
RECEIVE_BYTES = 64 * 1024
CONNECTIONS_MAX = 256
TABLES_GATHER_SECONDS = 0.02
NEVER_NEEDED = (1 << 63) - 1
ENDS = (ReplicationError, CopyRefused, StoreIoError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What ends one connection and nothing else."""


@attrs.define(eq=False)
class SlaveConnection:
    """One slave that is connected."""

    link: MasterLink
    stream: trio.SocketStream
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    started: trio.Event = attrs.field(factory=trio.Event)
    sending: SendTurns = attrs.field(factory=SendTurns)
    since: float = attrs.field(factory=trio.current_time)
    bytes_sent: int = 0
    speed: Speed = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.speed = Speed(at=self.since)

    async def send(self, data: bytes) -> None:
        await self.sending.send(self.stream, data)
        self.bytes_sent += len(data)


@attrs.define(eq=False)
class ReplicationMaster:
    """All slaves of this broker, and how far they have come."""

    store: MessageStore
    rules: LinkRules
    replicas: ReplicaSet
    bytes_per_second: int = 0
    """For each slave; 0: as fast as it goes."""
    connections: list[SlaveConnection] = attrs.field(factory=list, init=False)
    _marks: dict[int, Watermark] = attrs.field(factory=dict, init=False)
    """Number of slaves -> the log offset up to which so many had everything at the same time."""
    _tables_changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _acknowledged: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set at every report, and when a slave leaves."""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    @property
    def bounds(self) -> LogBounds:
        """What slaves may have: as for any reader, with SYNC_FLUSH only what is on the disk.

        So a master that loses power never comes back with less than its slaves have. (Java sends at once, and waits for disk and slaves at the same time.)
        """
        return LogBounds(self.store.first_offset, self.store.confirmed.value)

    def mark(self, acknowledgements: int) -> Watermark:
        """What so many slaves have."""
        found = self._marks.get(acknowledgements)
        if found is None:
            found = self._marks[acknowledgements] = Watermark(self.replicas.reached(acknowledgements))
        return found

    def needed_from(self) -> int:
        """The smallest log offset that a connected slave may still need: retention goes no further, as long as the disk has room."""
        bounds = self.bounds
        started = [connection.link for connection in self.connections if connection.link.next_offset is not None]
        return min((link.needs_from() for link in started if not link.too_far_behind(bounds)), default=NEVER_NEEDED)

    def tables_changed(self) -> None:
        """Tell slaves of ours that topics, groups or the like have changed. No checkpoint."""
        event, self._tables_changed = self._tables_changed, trio.Event()
        event.set()

    async def wait_copied(self) -> None:
        """Return when every slave that is here has the whole log; the caller sets the deadline.  Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        while any(replica.acknowledged < self.bounds.end for replica in self.replicas.replicas.values()):
            await self._acknowledged.wait()

    async def run(self, listener: trio.SocketListener) -> None:
        """The task "replication-master": accept slaves until cancelled."""
        async with listener, trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:  # no descriptors left: they come back
                    self._limit.log(logger, logging.ERROR, "cannot accept a slave: %s", error)
                    await trio.sleep(0.1)
                    continue
                if len(self.connections) >= CONNECTIONS_MAX:
                    self._limit.log(logger, logging.WARNING, "%s is turned away: the HA port has %s connections already, which cannot all be slaves", peer_text(stream), CONNECTIONS_MAX)
                    await trio.aclose_forcefully(stream)
                    continue
                nursery.start_soon(self._serve, stream, name="replication-connection")

    async def _serve(self, stream: trio.SocketStream) -> None:
        """One slave, from its first report to its end."""
        peer = peer_text(stream)
        connection = SlaveConnection(MasterLink(self.rules, peer, trio.current_time()), stream)
        self.connections.append(connection)
        reason = "replaced by a newer connection"
        try:
            async with stream:
                with connection.scope:
                    reason = await self._run_tasks(connection)
        finally:
            self.connections.remove(connection)
            self.replicas.replicas.pop(connection.link, None)
            self._acknowledged.set()
            self._acknowledged = trio.Event()
        if connection.started.is_set():
            logger.warning("slave %s is gone: %s; it had everything up to log offset %s", peer, reason, connection.link.acknowledged)
        else:
            self._limit.log(logger, logging.WARNING, "a connection of %s to the HA port came to nothing: %s", peer, reason)

    async def _run_tasks(self, connection: SlaveConnection) -> str:
        """Why it ended."""
        reason = ""

        async def fenced(run: Callable[[SlaveConnection], Awaitable[None]], scope: trio.CancelScope) -> None:
            nonlocal reason
            try:
                await run(connection)
            except ENDS as error:
                reason = reason or str(error) or "the connection broke"
                scope.cancel()

        async with trio.open_nursery() as nursery:
            tasks = {"read-reports": self._read_reports, "push": self._push, "tell-changes": self._tell_changes}
            for name, task in tasks.items():
                nursery.start_soon(fenced, task, nursery.cancel_scope, name=f"replication-{name}")
        return reason

    # Reports

    async def _read_reports(self, connection: SlaveConnection) -> None:
        link, stream = connection.link, connection.stream
        while True:
            data = None
            with trio.move_on_at(link.heard + self.rules.silence_seconds):
                data = await stream.receive_some(RECEIVE_BYTES)
            now = trio.current_time()
            if data is None:
                link.check_silence(now)
                continue
            if not data:
                raise LinkBroken("it closed the connection")
            named = link.name is not None
            link.receive(bytes(data), self.bounds, now)
            if connection.scope.cancel_called:
                return  # replaced while this was on its way: the newer connection speaks for that slave
            if link.next_offset is not None and not connection.started.is_set():
                self._join(connection, now)
            if not named and link.name is not None:
                self._replace_older(connection)
            if link.counts:
                self._note_acknowledged(link, now)

    def _join(self, connection: SlaveConnection, now: float) -> None:
        link = connection.link
        kind = "of TrioMQ" if link.is_ours else "of RocketMQ"
        logger.info("slave %s (%s) follows from log offset %s; its log ends at %s, ours at %s", link.peer, kind, link.next_offset, link.acknowledged, self.bounds.end)
        if link.too_far_behind(self.bounds):
            logger.error(
                "slave %s needs the log from offset %s on, but ours begins at %s: stop that slave, move its store directory away and start it: it copies what is left",
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
        for acknowledgements, mark in self._marks.items():
            mark.advance(self.replicas.reached(acknowledgements))
        event, self._acknowledged = self._acknowledged, trio.Event()
        event.set()

    def _replace_older(self, connection: SlaveConnection) -> None:
        """A slave that came back before its old connection was noticed to be dead must not count twice."""
        for other in self.connections:
            if other is not connection and other.link.name == connection.link.name:
                self.replicas.replicas.pop(other.link, None)
                other.scope.cancel()

    # Pushing

    async def _push(self, connection: SlaveConnection) -> None:
        link = connection.link
        await connection.started.wait()
        if link.is_ours:
            await self._greet(connection)
        pace = Pace(self.bytes_per_second) if self.bytes_per_second else None
        while True:
            now = trio.current_time()
            bytes_max = min(PUSH_BYTES, pace.allowance(now)) if pace is not None else PUSH_BYTES
            frames = link.take_frames(self.bounds, now, bytes_max)
            if frames:
                data = await self._encode(frames)
                await connection.send(data)
                if pace is not None:
                    pace.spend(len(data))
                continue
            assert link.next_offset is not None
            with trio.move_on_at(link.next_deadline()):
                if link.too_far_behind(self.bounds):
                    await trio.sleep_forever()
                elif self.bounds.end > link.next_offset and pace is not None:
                    await trio.sleep(max(0.001, pace.seconds_to_wait()))
                else:
                    await self.store.confirmed.wait_beyond(link.next_offset)

    async def _greet(self, connection: SlaveConnection) -> None:
        """Say that we are one of its own, and what our log has just before the place where it goes on."""
        link, bounds = connection.link, self.bounds
        end = link.acknowledged
        start = max(bounds.first, check_start(end, self.rules.segment_size))
        crc = zlib.crc32(await self._read(start, end)) if start < end else 0
        assert link.next_offset is not None
        await connection.send(hello_frame(link.next_offset, MasterHello(bounds.first, bounds.end, start, crc)))

    async def _encode(self, frames: Sequence[tuple[int, int]]) -> bytes:
        """Frames with their heads; adjacent ones in a segment are read with one call."""
        pieces: list[Buffer] = []
        index = 0
        size = self.rules.segment_size
        while index < len(frames):
            last = index
            while last + 1 < len(frames) and frames[last + 1][0] // size == frames[index][0] // size:
                last += 1
            begin, stop = frames[index][0], frames[last][1]
            data = memoryview(await self._read(begin, stop)) if stop > begin else memoryview(b"")
            for start, end in frames[index : last + 1]:
                pieces += (frame_head(start, end - start), data[start - begin : end - begin])
            index = last + 1
        return b"".join(pieces)

    async def _read(self, start: int, end: int) -> Buffer:
        found = self.store.log_bytes(start, end)
        return found if found is not None else await self.store.log_bytes_cold(start, end)

    async def _tell_changes(self, connection: SlaveConnection) -> None:
        """Only a slave of ours knows what to do with such a frame."""
        await connection.started.wait()
        changed = self._tables_changed
        while connection.link.is_ours:
            await changed.wait()
            await trio.sleep(TABLES_GATHER_SECONDS)
            changed = self._tables_changed  # before the frame goes: what changes while it waits for room is told by the next one
            assert connection.link.next_offset is not None
            await connection.send(tables_changed_frame(connection.link.next_offset))


def peer_text(stream: trio.SocketStream) -> str:
    try:
        name = stream.socket.getpeername()
    except OSError:
        return "somebody"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
