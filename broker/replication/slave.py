"""The slave's side: one connection to the master at a time, made again for ever; what comes is appended, then reported.

A report of a slave with SYNC_FLUSH says what its disk has; of one with ASYNC_FLUSH what its page cache has, as with Java.
"""

from __future__ import annotations

import logging
import random
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
import trio

from triomq.broker.replication.errors import LinkBroken, LinkSilent, LogsDiffer, ReplicationError
from triomq.broker.replication.master_link import LinkRules
from triomq.broker.replication.pace import Speed
from triomq.broker.replication.slave_link import SlaveLink
from triomq.broker.replication.transfer import NAME_MAX, Event, LogData, MasterHello, TablesChanged
from triomq.broker.replication.wire import Wire
from triomq.broker.store.config import FlushMode
from triomq.broker.store.errors import CopyRefused, StoreIoError, StoreUnavailable
from triomq.broker.store.log_copy import LogCopy
from triomq.broker.store.store import MessageStore
from triomq.broker.store.watermark import Watermark
from triomq.remoting.address import parse_address
from triomq.remoting.client.dial import dial
from triomq.remoting.log_limit import LogLimit

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
RETRY_SECONDS_FIRST = 0.5
RETRY_SECONDS_MAX = 5.0
RECEIVES_A_TURN = 2
"""Where more comes than a buffer takes, so many are filled before others get their turn."""
INDEXED_SECONDS_MAX = 1.0
"""So long nothing is read for the sake of the indexes; then what little is read goes to them at once."""
TELL_SECONDS = 60.0
"""The same trouble is told so often."""


@attrs.define(eq=False)
class MasterAddress:
    """Where the master is: its HA port, and the port that answers requests.  Set by the configuration or by name servers' answers."""

    ha: str | None = None
    remoting: str | None = None
    ha_fixed: bool = False
    """``haMasterAddress`` is set: name servers are not asked."""
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def update(self, ha: str | None, remoting: str | None) -> None:
        """Take a name server's answer; it says nothing while no master is registered, and then the old address stays. No checkpoint."""
        ha = self.ha if self.ha_fixed else ha or self.ha
        remoting = remoting or self.remoting
        if (ha, remoting) != (self.ha, self.remoting):
            self._limit.log(logger, logging.INFO, "the master is %s, its HA port %s", remoting or "not known", ha or "not known")
            self.ha, self.remoting = ha, remoting
            event, self.changed = self.changed, trio.Event()
            event.set()


@attrs.define(eq=False)
class ReplicationSlave:
    """Keeps this broker's log a copy of its master's."""

    store: MessageStore
    copy: LogCopy
    rules: LinkRules
    master: MasterAddress
    last_segment_only: bool = False
    look: bool = False
    """Look for messages before sleeping, if the master's senders wait for our reports."""
    on_lost: list[Callable[[], None]] = attrs.field(factory=list)
    """Called when a connection has ended."""
    link: SlaveLink | None = attrs.field(default=None, init=False)
    """The present connection."""
    tables_changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when the master says that its tables have changed; whoever copies them puts a fresh one here."""
    bytes_received: int = attrs.field(default=0, init=False)
    speed: Speed = attrs.field(factory=Speed, init=False)
    _name: int = attrs.field(init=False)
    _followed: bool = attrs.field(default=False, init=False)
    """Whether the present connection has brought anything."""
    _told: tuple[str, float] = attrs.field(default=("", 0.0), init=False)

    def __attrs_post_init__(self) -> None:
        self._name = NAME_MAX - random.getrandbits(62)

    @property
    def following(self) -> bool:
        """Whether the master is there: it has said something over the present connection."""
        return self._followed

    @property
    def position(self) -> Watermark:
        """What is reported."""
        return self.store.flushed if self.store.config.flush_mode is FlushMode.SYNC else self.store.appended

    async def run(self) -> None:
        """The task "replication-slave"."""
        retry_seconds = RETRY_SECONDS_FIRST
        while True:
            address, changed = self.master.ha, self.master.changed
            if address is None:
                logger.info("waiting for a name server to say where the master is (or set haMasterAddress)")
                await changed.wait()
                continue
            reason = "the master is elsewhere now"
            async with trio.open_nursery() as nursery:

                async def leave(scope: trio.CancelScope, changed: trio.Event = changed, address: str = address) -> None:
                    while self.master.ha == address:
                        await changed.wait()
                        changed = self.master.changed
                    scope.cancel()

                nursery.start_soon(leave, nursery.cancel_scope, name="replication-address")
                reason = await self._follow(address)
                nursery.cancel_scope.cancel()
            self.link = None
            self.copy.drop_rest()
            retry_seconds = RETRY_SECONDS_FIRST if self._followed else min(retry_seconds * 2, RETRY_SECONDS_MAX)
            self._followed = False
            for told in self.on_lost:
                told()
            self._tell(address, reason, retry_seconds)
            await trio.sleep(retry_seconds)

    def _tell(self, address: str, reason: str, retry_seconds: float) -> None:
        now = trio.current_time()
        if reason == self._told[0] and now < self._told[1] + TELL_SECONDS:
            return
        self._told = reason, now
        logger.warning("not following master %s: %s; trying again every %g s", address, reason, retry_seconds)

    async def _follow(self, address: str) -> str:
        """One connection; why it ended."""
        self.copy.drop_rest()
        # What is reported is where the master goes on: with SYNC_FLUSH the disk may not have yet what came over the last connection.
        await self.position.wait_reached(self.copy.received)
        try:
            host, port = parse_address(address)
            with trio.move_on_after(CONNECT_SECONDS) as connecting:
                wire = Wire(await dial(host, port))
            if connecting.cancelled_caught:
                return f"no connection within {CONNECT_SECONDS:g} s"
            try:
                return await self._run_tasks(address, wire)
            finally:
                wire.close()
        except (OSError, ValueError) as error:
            return f"no connection ({error})"

    async def _run_tasks(self, address: str, wire: Wire) -> str:
        copy = self.copy
        empty = copy.is_empty
        link = self.link = SlaveLink(self.rules, None if empty else copy.received, self._name, trio.current_time(), self.last_segment_only)
        broken = "the connection broke"
        reason = ""
        try:
            await wire.send(link.opening(0 if empty else self.position.value, trio.current_time()))
        except trio.BrokenResourceError:
            return broken

        async def fenced(run: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
            nonlocal reason
            try:
                await run()
            except (ReplicationError, CopyRefused, StoreUnavailable, StoreIoError) as error:
                reason = reason or str(error)  # whoever meets the first only sees that things do not fit any more
            except trio.BrokenResourceError:
                reason = reason or broken
            scope.cancel()

        try:
            with copy.writer.using():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._report, link, wire, nursery.cancel_scope, name="replication-report")
                    nursery.start_soon(fenced, self._write_behind, nursery.cancel_scope, name="replication-write")
                    nursery.start_soon(fenced, partial(self._commit_written, link, wire), nursery.cancel_scope, name="replication-commit")
                    await fenced(partial(self._receive, address, link, wire, nursery), nursery.cancel_scope)
                try:
                    await copy.writer.finish(copy.index_taken)  # what has come whole is kept, whoever sent it may be gone
                except (StoreUnavailable, StoreIoError) as error:
                    reason = reason or str(error)
        finally:
            copy.ahead.stop()
        return reason or broken

    async def _write_behind(self) -> None:
        """Where much comes at once: write it."""
        while True:
            await self.copy.writer.write_some()

    async def _commit_written(self, link: SlaveLink, wire: Wire) -> None:
        """And report it."""

        def committed() -> None:
            """As ``_take``: append, then report, then index."""
            try:
                self._post_report(link, wire)
            finally:
                self.copy.index_taken()

        while True:
            await self.copy.writer.commit_some(committed)

    async def _receive(self, address: str, link: SlaveLink, wire: Wire, nursery: trio.Nursery) -> None:
        """Append what comes.  Raises why it ends."""
        events: Sequence[Event] = ()
        while True:
            # One scope for all that comes: each time puts the end of silence off, and that is looked at when it has come.
            with trio.move_on_at(link.heard + self.rules.silence_seconds):
                events = await self._take_what_comes(address, link, wire)
            link.check_silence(trio.current_time())
            while events:
                hello, *rest = events
                assert isinstance(hello, MasterHello)
                await self._meet(link, hello, wire)
                self.copy.ahead.aim(hello.end)
                if self.look and hello.awaited:
                    wire.look(nursery)
                events = self._take(address, link, wire, rest)
            if self.copy.writer.is_full:
                await self.copy.writer.wait_room()
                link.heard = trio.current_time()  # nobody has listened meanwhile
            with self._bounded_send():
                await wire.drain()
            if self.copy.is_spent:
                with trio.move_on_after(INDEXED_SECONDS_MAX):
                    await self.copy.wait_indexed()

    async def _take_what_comes(self, address: str, link: SlaveLink, wire: Wire) -> Sequence[Event]:
        """Append and report, until there is something that takes waiting; what is left from a hello on."""
        while True:
            data: memoryview | None = await wire.receive()
            turns = 0
            while data is not None:
                if not data:
                    raise LinkBroken("the master closed the connection (its log says why)")
                left = self._take(address, link, wire, link.receive(data, trio.current_time()))
                if left or wire.is_full or self.copy.writer.is_full or self.copy.is_spent:
                    return left
                turns += 1
                data = wire.receive_more() if turns < RECEIVES_A_TURN else None

    def _take(self, address: str, link: SlaveLink, wire: Wire, events: Sequence[Event]) -> Sequence[Event]:
        """Append, then report, then index: senders may be waiting for the report at the master. What is left from a hello on. No checkpoint."""
        left: Sequence[Event] = ()
        try:
            for index, event in enumerate(events):
                if isinstance(event, LogData):
                    self.bytes_received += len(event.data)
                    self.copy.take_unindexed(event.start, event.data)
                elif isinstance(event, MasterHello):
                    left = events[index:]
                    break
                elif isinstance(event, TablesChanged):
                    self.tables_changed.set()
            self._post_report(link, wire)
        finally:
            self.copy.index_taken()
        if not self._followed and not left:
            self._followed = True
            self.tables_changed.set()  # nobody has told us of what changed while we were away, and its messages come now
            self._told = "", 0.0
            logger.info("following master %s (%s) from log offset %s on", address, "TrioMQ" if link.master is not None else "RocketMQ", self.copy.received)
        return left

    @contextmanager
    def _bounded_send(self) -> Iterator[None]:
        """Whoever receives also watches for silence: a master that takes nothing must not keep it from that.  Raises LinkSilent."""
        with trio.move_on_after(self.rules.silence_seconds) as sending:
            yield
        if sending.cancelled_caught:
            raise LinkSilent(f"it has taken nothing for {self.rules.silence_seconds:g} s (haHousekeepingInterval)")

    async def _meet(self, link: SlaveLink, hello: MasterHello, wire: Wire) -> None:
        """Is our log the beginning of the master's?  Its last bytes tell."""
        end = link.met_at
        if end is not None and max(hello.check_start, self.store.first_offset) < end:
            if hello.check_start < self.store.first_offset:
                raise LogsDiffer(f"the master's segments are not ours: it compares from log offset {hello.check_start}, our log begins at {self.store.first_offset}; set mappedFileSizeCommitLog to its value")
            found = self.store.log_bytes(hello.check_start, end)
            link.check(hello, zlib.crc32(found if found is not None else await self.store.log_bytes_cold(hello.check_start, end)))
        with self._bounded_send():
            await wire.send(link.introduction())

    def _post_report(self, link: SlaveLink, wire: Wire) -> None:
        """If there is something to report. No checkpoint."""
        report = link.take_report(0 if self.copy.is_empty else self.position.value, trio.current_time())
        if report:
            wire.post(report)

    async def _report(self, link: SlaveLink, wire: Wire, scope: trio.CancelScope) -> None:
        """Say how far the disk is when that changes, and how far we are now and then. What is in the log is reported by whoever put it there."""
        position = self.position

        def post() -> None:
            try:
                self._post_report(link, wire)
            except trio.BrokenResourceError:  # this task meets it, too
                return

        if position is not self.store.appended:
            position.followers.append(post)
        try:
            while True:
                with trio.move_on_at(link.wrote + self.rules.heartbeat_seconds):
                    if position is self.store.appended:
                        await trio.sleep_forever()
                    await position.wait_beyond(link.reported)
                self._post_report(link, wire)
                await wire.drain()
        except trio.BrokenResourceError:
            scope.cancel()
        finally:
            if position is not self.store.appended:
                position.followers.remove(post)
