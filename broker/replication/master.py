"""The master's side: the HA port, and two tasks for each slave, one that pushes the log and one that reads reports.

A slave that is slow, silent or wrong costs nobody else anything: its tasks fail alone, and it connects again.
"""

from __future__ import annotations

import errno
import logging
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby

import attrs
import trio

from triomq.broker.replication.admission import HaAdmission
from triomq.broker.replication.errors import LinkBroken, ReplicationError
from triomq.broker.replication.master_link import LinkRules, LogBounds, MasterLink
from triomq.broker.replication.pace import Pace, Speed
from triomq.broker.replication.replicas import Replica, ReplicaSet
from triomq.broker.replication.transfer import MasterHello, check_start, frame_head, hello_frame, tables_changed_frame
from triomq.broker.replication.wire import Wire
from triomq.broker.store.errors import CopyRefused, StoreIoError
from triomq.broker.store.reads import Buffer
from triomq.broker.store.store import MessageStore
from triomq.broker.store.watermark import Watermark
from triomq.remoting.log_limit import LogLimit

logger = logging.getLogger(__name__)

PUSH_BYTES = 1024 * 1024
TABLES_GATHER_SECONDS = 0.02
NEVER_NEEDED = (1 << 63) - 1
ENDS = (ReplicationError, CopyRefused, StoreIoError, trio.BrokenResourceError)
"""What ends one connection and nothing else."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Frames = list[tuple[int, int]]
"""[start, end) of the log for each."""


@attrs.define(eq=False)
class SlaveConnection:
    """One slave that is connected."""

    link: MasterLink
    wire: Wire
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    started: trio.Event = attrs.field(factory=trio.Event)
    grown: trio.Event | None = attrs.field(default=None, init=False)
    """Set while the slave has been sent everything and its task waits for more."""
    taken: Frames = attrs.field(factory=list, init=False)
    """Frames that count as sent, and that the task is to send."""
    since: float = attrs.field(factory=trio.current_time)
    bytes_sent: int = 0
    speed: Speed = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.speed = Speed(at=self.since)

    async def send(self, pieces: Sequence[Buffer]) -> int:
        """How many bytes that was."""
        size = sum(map(len, pieces))
        self.bytes_sent += size
        self.wire.post_all(pieces)
        await self.wire.drain()
        return size


@attrs.define(eq=False)
class ReplicationMaster:
    """All slaves of this broker, and how far they have come."""

    store: MessageStore
    rules: LinkRules
    replicas: ReplicaSet
    bytes_per_second: int = 0
    """For each slave; 0: as fast as it goes."""
    awaited: bool = False
    """Senders wait for slaves."""
    look: bool = False
    """Look for their reports then, before sleeping."""
    admission: HaAdmission = attrs.field(factory=HaAdmission)
    push_in_place: bool = attrs.field(default=False, init=False)
    """Send what was stored in the step that stores it: somebody waits for slaves, and everything else can wait."""
    on_acknowledged: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    """Called when a slave has reported. They must not raise. No checkpoint."""
    connections: list[SlaveConnection] = attrs.field(factory=list, init=False)
    _marks: dict[int, Watermark] = attrs.field(factory=dict, init=False)
    """Number of slaves -> the log offset up to which so many had everything at the same time."""
    _tables_changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _changed: trio.Event | None = attrs.field(default=None, init=False)
    """If somebody waits for it: set at the next report, or when a slave leaves."""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self.store.confirmed.followers.append(self._log_grew)

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
            if self._changed is None:
                self._changed = trio.Event()
            await self._changed.wait()

    def _tell_changed(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def run(self, listener: socket.socket) -> None:
        """The task "replication-master": accept slaves until cancelled."""
        with listener:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.lowlevel.wait_readable(listener)
                    try:
                        sock, _ = listener.accept()
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        if error.errno in EXHAUSTED:  # no descriptors left: they come back
                            self._limit.log(logger, logging.ERROR, "cannot accept a slave: %s", error)
                            await trio.sleep(0.1)
                        continue  # else the peer gave up while it was in the backlog
                    peer = peer_text(sock)
                    if refusal := self.admission.refusal(host_of(peer), (host_of(connection.link.peer) for connection in self.connections)):
                        self._limit.log(logger, logging.WARNING, "%s is turned away: %s", peer, refusal)
                        sock.close()
                        continue
                    self._accept(sock, nursery)

    def _accept(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        sock.setblocking(False)
        connection = SlaveConnection(MasterLink(self.rules, peer_text(sock), trio.current_time()), Wire(sock))
        self.connections.append(connection)
        nursery.start_soon(self._serve, connection, name="replication-connection")

    async def _serve(self, connection: SlaveConnection) -> None:
        """One slave, from its first report to its end."""
        peer = connection.link.peer
        reason = "replaced by a newer connection"
        try:
            with connection.scope:
                reason = await self._run_tasks(connection)
        finally:
            connection.wire.close()
            self.connections.remove(connection)
            self.replicas.replicas.pop(connection.link, None)
            self._tell_changed()
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
        while not connection.scope.cancel_called:
            # One scope for many reports: each of them puts the end of silence off, and that is looked at when it has come.
            with trio.move_on_at(connection.link.heard + self.rules.silence_seconds):
                await self._read_some_reports(connection)
            connection.link.check_silence(trio.current_time())

    async def _read_some_reports(self, connection: SlaveConnection) -> None:
        """Until the connection is replaced. Between two reports it waits for nothing: whoever waits for a slave is answered in the step that reads."""
        link = connection.link
        while True:
            data = await connection.wire.receive()
            now = trio.current_time()
            if not data:
                raise LinkBroken("it closed the connection")
            named = link.name is not None
            link.receive(data, self.bounds, now)
            if connection.scope.cancel_called:
                return  # replaced while this was on its way: the newer connection speaks for that slave
            if link.next_offset is not None and not connection.started.is_set():
                self._join(connection, now)
                nursery = trio.lowlevel.current_task().parent_nursery
                if self.awaited and self.look and nursery is not None:
                    connection.wire.look(nursery)
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
        for told in self.on_acknowledged:
            told()
        self._tell_changed()

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
            frames = connection.taken or link.take_frames(self.bounds, now, bytes_max)
            connection.taken = []
            if frames:
                pieces: list[Buffer] = []
                for run in self._runs(frames):
                    pieces += self._encoded(run, await self._read(run[0][0], run[-1][1]))
                size = await connection.send(pieces)
                if pace is not None:
                    pace.spend(size)
                await trio.lowlevel.checkpoint()
                continue
            await connection.wire.drain()
            assert link.next_offset is not None
            if pace is None and self.bounds.end > link.next_offset and not link.too_far_behind(self.bounds):
                continue  # came while the socket was full: nobody could tell this task, for it did not wait for that
            with trio.move_on_at(link.next_deadline()):
                if link.too_far_behind(self.bounds):
                    await trio.sleep_forever()
                elif self.bounds.end > link.next_offset and pace is not None:
                    await trio.sleep(max(0.001, pace.seconds_to_wait()))
                else:
                    await self._wait_grown(connection)

    async def _wait_grown(self, connection: SlaveConnection) -> None:
        """Until there is something that only a task can do. Checkpoint: always."""
        connection.grown = trio.Event()
        try:
            await connection.grown.wait()
        finally:
            connection.grown = None

    def _log_grew(self) -> None:
        """Send slaves that have everything else what has come, or wake their tasks. No checkpoint. Never raises: whoever stores a message calls it."""
        for connection in self.connections:
            grown = connection.grown
            if grown is None or grown.is_set():  # its task goes on by itself; what it is about to send comes first
                continue
            if not (self.push_in_place and not self.bytes_per_second and self._push_now(connection)):
                grown.set()

    def _push_now(self, connection: SlaveConnection) -> bool:
        """Send the next frames; False: the task has more to do. No checkpoint. Never raises."""
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
                pieces += self._encoded(run, found)
            connection.taken = []
            data = b"".join(pieces)
            connection.bytes_sent += len(data)
            return connection.wire.post(data) and link.next_offset == bounds.end
        except Exception:  # the task meets it, too, since the frames stay taken, and tells what it is; whoever stores a message has nothing to do with it
            return False

    async def _greet(self, connection: SlaveConnection) -> None:
        """Say that we are one of its own, and what our log has just before the place where it goes on."""
        link, bounds = connection.link, self.bounds
        end = link.acknowledged
        start = max(bounds.first, check_start(end, self.rules.segment_size))
        crc = zlib.crc32(await self._read(start, end)) if start < end else 0
        assert link.next_offset is not None
        await connection.send([hello_frame(link.next_offset, MasterHello(bounds.first, bounds.end, start, crc, self.awaited))])

    def _runs(self, frames: Frames) -> Iterator[Frames]:
        """Those of one segment together: they are read with one call."""
        if len(frames) == 1:
            yield frames
            return
        size = self.rules.segment_size
        for _, run in groupby(frames, lambda frame: frame[0] // size):
            yield list(run)

    @staticmethod
    def _encoded(run: Frames, data: Buffer) -> list[Buffer]:
        """Frames with their heads; what they carry is not copied."""
        begin, view = run[0][0], memoryview(data)
        pieces: list[Buffer] = []
        for start, end in run:
            pieces += (frame_head(start, end - start), view[start - begin : end - begin])
        return pieces

    async def _read(self, start: int, end: int) -> Buffer:
        if start == end:  # a sign of life
            return b""
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
            await connection.send([tables_changed_frame(connection.link.next_offset)])


def peer_text(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "somebody"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def host_of(peer: str) -> str:
    """The address in the text of a peer, without brackets."""
    return peer.rpartition(":")[0].strip("[]")
