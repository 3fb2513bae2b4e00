"""The slave's side of replication: one connection to the master at a time, made again without end.

What comes is appended, then reported. A slave with SYNC_FLUSH reports what its disk has; with
ASYNC_FLUSH what its page cache has, as Java does.
"""

from __future__ import annotations

import logging
import random
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.broker.replication.epoch_file import EpochFile
from triomq.broker.replication.epoch_slave_link import EpochSlaveLink
from triomq.broker.replication.errors import (
    LinkBroken,
    LinkSilent,
    LogsDiffer,
    LogsParted,
    ReplicationError,
    TailDiffers,
)
from triomq.broker.replication.link_socket import LinkSocket
from triomq.broker.replication.login import ReplicationLogin
from triomq.broker.replication.master_link import LinkRules
from triomq.broker.replication.parted import PartedLogs
from triomq.broker.replication.rates import RateMeter
from triomq.broker.replication.slave_link import SlaveLink, longer_log
from triomq.broker.replication.transfer import (
    NAME_MAX,
    EpochBegins,
    Event,
    LogData,
    MasterEpochs,
    MasterHello,
    TablesChanged,
    check_start,
)
from triomq.broker.store.core.errors import CopyRefused, StoreIoError, StoreUnavailable
from triomq.broker.store.core.watermark import Watermark
from triomq.broker.store.follow.log_copy import LogCopy
from triomq.broker.store.store import MessageStore
from triomq.remoting.client.dial import dial
from triomq.remoting.core.address import parse_address
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.log_limit import LogLimit

if TYPE_CHECKING:
    from triomq.broker.replication.link_tls import SlaveTls  # ssl, only with TLS

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
RETRY_SECONDS_FIRST = 0.5
RETRY_SECONDS_MAX = 5.0
RECEIVES_A_TURN = 2
"""Maximum consecutive full reads before yielding."""
INDEXED_SECONDS_MAX = 1.0
"""Longest pause of reading while the indexer catches up; what is read then is indexed at once."""
REPEAT_SECONDS = 60.0
"""Interval at which the same reason is logged again."""


@attrs.define(eq=False)
class MasterAddress:
    """Where the master is: its HA port, and the port that answers requests.

    The configuration or answers of name servers set them.
    """

    ha: str | None = None
    remoting: str | None = None
    ha_fixed: bool = False
    """Whether ``haMasterAddress`` is set, so that answers of name servers do not count."""
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def update(self, ha: str | None, remoting: str | None) -> None:
        """Take over a name server's answer. Checkpoint: never.

        It is empty while no master is registered; the old address stays then.
        """
        ha = self.ha if self.ha_fixed else ha or self.ha
        remoting = remoting or self.remoting
        if (ha, remoting) != (self.ha, self.remoting):
            self._limit.info(
                logger,
                "the master is %s, its HA port %s",
                remoting or "not known",
                ha or "not known",
            )
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
    parted: PartedLogs
    last_segment_only: bool = False
    busy_poll: bool = False
    """Whether to busy poll for messages if the master's senders wait for reports."""
    on_lost: list[Callable[[], None]] = attrs.field(factory=list)
    """Called when a connection has ended."""
    login: ReplicationLogin | None = attrs.field(default=None, kw_only=True)
    """How this slave logs in at its master, which must do the same; None: it does not."""
    tls: SlaveTls | None = attrs.field(default=None, kw_only=True)
    """How connections are encrypted; None: they are not."""
    broker_id: int = attrs.field(default=0, kw_only=True)
    """In controller mode the id that a controller has given; otherwise 0."""
    epochs: EpochFile | None = attrs.field(default=None, kw_only=True)
    """In controller mode the epochs of this log."""
    epoch: int = attrs.field(default=0, kw_only=True)
    """In controller mode that of the master to follow."""
    on_cut: Callable[[int], None] | None = attrs.field(default=None, kw_only=True)
    """Called in controller mode with the offset at which this log must be cut first."""
    link: SlaveLink | None = attrs.field(default=None, init=False)
    """The present connection."""
    tables_changed: Watermark = attrs.field(factory=Watermark, init=False)
    """Grows by one whenever the tables of the master have changed, as far as this slave knows."""
    bytes_received: int = attrs.field(default=0, init=False)
    rate: RateMeter = attrs.field(factory=RateMeter, init=False)
    following: bool = attrs.field(default=False, init=False)
    """Whether the master has sent something over the present connection."""
    _name: int = attrs.field(factory=lambda: NAME_MAX - random.getrandbits(62), init=False)
    _logged: tuple[str, float] = attrs.field(default=("", 0.0), init=False)
    _greeting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    """In controller mode: the task that reports, until this log is known to begin the master's."""

    @property
    def position(self) -> Watermark:
        """The part of the log that is reported."""
        return self.store.copyable

    async def run(self) -> None:
        """Run the task "replication-slave"."""
        retry_seconds = RETRY_SECONDS_FIRST
        while True:
            address = self.master.ha
            if address is None:
                logger.info(
                    "waiting to hear where the HA port of the master is (or set haMasterAddress)"
                )
                await self.master.changed.wait()
                continue
            reason = "the master is elsewhere now"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    self._leave, address, nursery.cancel_scope, name="replication-address"
                )
                reason = await self._follow(address)
                nursery.cancel_scope.cancel()
            self.link = None
            self.copy.drop_rest()
            retry_seconds = (
                RETRY_SECONDS_FIRST if self.following else min(retry_seconds * 2, RETRY_SECONDS_MAX)
            )
            self.following = False
            for callback in self.on_lost:
                callback()
            self._log(address, reason, retry_seconds)
            await trio.sleep(retry_seconds)

    async def compare_ends(self, own_end: int, master_end: Callable[[], Awaitable[int]]) -> None:
        """Note that the logs have parted if this one is longer than its master's.

        A master of RocketMQ says nothing when a longer log connects, and goes on in the middle as
        soon as its own log is the longer one. Masters of TrioMQ say in their hello where they are.

        ``own_end``: of this log; ``master_end`` asks for the master's afterwards. While a master
        of RocketMQ starts it has no such figures: the next copy asks again.

        Checkpoint: maybe.
        """
        greeted = self.link is not None and self.link.master is not None
        if greeted or self.epochs is not None or self.parted.known():
            return
        try:
            end = await master_end()
        except RemotingError:
            return
        if own_end > end:
            self.parted.note(longer_log(own_end, end))
            logger.error("this slave serves nothing: %s", self.parted.reason)

    async def _leave(self, address: str, scope: trio.CancelScope) -> None:
        """Cancel the scope when the master's HA address changes."""
        while self.master.ha == address:
            await self.master.changed.wait()
        scope.cancel()

    def _log(self, address: str, reason: str, retry_seconds: float) -> None:
        now = trio.current_time()
        if reason == self._logged[0] and now < self._logged[1] + REPEAT_SECONDS:
            return
        self._logged = reason, now
        logger.warning(
            "not following master %s: %s; trying again every %g s", address, reason, retry_seconds
        )

    async def _follow(self, address: str) -> str:
        """Follow over one connection; return why it ended."""
        self.copy.drop_rest()
        # The master goes on at the reported offset. With SYNC_FLUSH the disk may not yet have what
        # came over the last connection.
        await self.position.wait_reached(self.copy.received)
        try:
            host, port = parse_address(address)
            with trio.move_on_after(CONNECT_SECONDS) as connecting:
                sock = await dial(host, port)
            if connecting.cancelled_caught:
                return f"no connection within {CONNECT_SECONDS:g} s"
            link_socket = LinkSocket(sock) if self.tls is None else await self.tls.enter(sock, host)
            try:
                if self.login is not None:
                    await self.login.enter(link_socket)
                return await self._run_tasks(link_socket)
            except (CopyRefused, StoreUnavailable, StoreIoError) as error:
                return str(error)
            except trio.BrokenResourceError:
                return link_socket.why_broken()
            finally:
                link_socket.close()
        except ReplicationError as error:
            return str(error)
        except (OSError, ValueError) as error:
            return f"no connection ({error})"

    async def _run_tasks(self, link_socket: LinkSocket) -> str:
        copy = self.copy
        empty = copy.is_empty
        if empty:
            self.parted.note("")  # an empty log is the beginning of every other
        link = self.link = self._new_link(
            None if empty else copy.received,
            b"" if empty or self.epochs is None else await self._tail(copy.received),
        )
        reason = ""
        try:
            await link_socket.send(
                link.opening(0 if empty else self.position.value, trio.current_time())
            )
        except trio.BrokenResourceError:
            return link_socket.why_broken()

        async def fenced(run: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
            nonlocal reason
            try:
                await run()
            except (ReplicationError, CopyRefused, StoreUnavailable, StoreIoError) as error:
                if isinstance(error, LogsParted):
                    self.parted.note(str(error))
                if isinstance(error, TailDiffers) and self.on_cut is not None:
                    self.on_cut(error.end)
                # Only the first error is the reason; the others follow from it.
                reason = reason or str(error)
            except trio.BrokenResourceError:
                reason = reason or link_socket.why_broken()
            scope.cancel()

        try:
            with copy.writer.using():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(
                        self._report,
                        link,
                        link_socket,
                        nursery.cancel_scope,
                        name="replication-report",
                    )
                    nursery.start_soon(
                        fenced, self._write_behind, nursery.cancel_scope, name="replication-write"
                    )
                    nursery.start_soon(
                        fenced,
                        partial(self._commit_written, link, link_socket),
                        nursery.cancel_scope,
                        name="replication-commit",
                    )
                    await fenced(
                        partial(self._receive, link, link_socket, nursery), nursery.cancel_scope
                    )
                try:
                    # Keep the whole records that have come: the master may be gone.
                    await copy.writer.finish(copy.index_taken)
                except (StoreUnavailable, StoreIoError) as error:
                    reason = reason or str(error)
        finally:
            copy.deferral.stop()
        return reason or link_socket.why_broken()

    async def _tail(self, end: int) -> bytes:
        """Return the last bytes of this log, at most those that masters compare."""
        start = max(self.store.first_offset, check_start(end, self.rules.segment_size))
        found = self.store.log_bytes(start, end)
        return bytes(found if found is not None else await self.store.log_bytes_cold(start, end))

    def _new_link(self, expected: int | None, tail: bytes) -> SlaveLink:
        now, last_only = trio.current_time(), self.last_segment_only
        if self.epochs is None:
            return SlaveLink(self.rules, expected, self._name, now, last_only)
        history = self.epochs.history
        return EpochSlaveLink(
            *(self.rules, expected, self.broker_id, now, last_only),
            history=history,
            epoch=self.epoch,
            shown=self.store.confirmed.value,
            tail=tail,
        )

    async def _write_behind(self) -> None:
        """Write what comes in bulk."""
        while True:
            await self.copy.writer.write_some()

    async def _commit_written(self, link: SlaveLink, link_socket: LinkSocket) -> None:
        """Commit what was written in bulk, and report it."""

        def committed() -> None:
            """Report, then index, as ``_take`` does."""
            try:
                self._post_report(link, link_socket)
            finally:
                self.copy.index_taken()

        while True:
            await self.copy.writer.commit_some(committed)

    async def _receive(
        self, link: SlaveLink, link_socket: LinkSocket, nursery: trio.Nursery
    ) -> None:
        """Append what comes. Raises: ReplicationError, and errors of the store and the socket."""
        events: Sequence[Event] = ()
        while True:
            # One scope for many reads: a scope for each would cost more than reading. The deadline
            # is moved when it has come.
            with trio.move_on_at(link.heard + self.rules.silence_seconds):
                events = await self._take_what_comes(link, link_socket)
            link.check_silence(trio.current_time())
            while events:
                hello, *rest = events
                assert isinstance(hello, MasterHello)
                await self._answer_hello(link, hello, link_socket)
                self.copy.deferral.aim(hello.end)
                if self.busy_poll and hello.awaited:
                    link_socket.busy_poll(nursery)
                events = self._take(link, link_socket, rest)
            if self.copy.writer.is_full:
                await self.copy.writer.wait_room()
                link.heard = trio.current_time()  # silence does not count while nothing is read
            with self._bounded_send():
                await link_socket.drain()
            if self.copy.is_spent:
                with trio.move_on_after(INDEXED_SECONDS_MAX):
                    await self.copy.wait_indexed()

    async def _take_what_comes(self, link: SlaveLink, link_socket: LinkSocket) -> Sequence[Event]:
        """Append and report until there is a reason to wait; return the events from a hello on."""
        while True:
            data: memoryview | None = await link_socket.receive()
            turns = 0
            while data is not None:
                if not data:
                    raise LinkBroken("the master closed the connection (its log says why)")
                left = self._take(link, link_socket, link.receive(data, trio.current_time()))
                if left or link_socket.is_full or self.copy.writer.is_full or self.copy.is_spent:
                    return left
                turns += 1
                data = link_socket.receive_more() if turns < RECEIVES_A_TURN else None

    def _take(
        self, link: SlaveLink, link_socket: LinkSocket, events: Sequence[Event]
    ) -> Sequence[Event]:
        """Append, report, index, in this order: senders at the master may wait for the report.

        Return the events from a hello on. Checkpoint: never.
        """
        left: Sequence[Event] = ()
        try:
            for index, event in enumerate(events):
                if isinstance(event, LogData):
                    if self.parted.known() and link.master is None and self.epochs is None:
                        raise LogsParted(self.parted.reason)
                    self.bytes_received += len(event.data)
                    self.copy.take_unindexed(event.start, event.data)
                elif isinstance(event, MasterHello):
                    left = events[index:]
                    break
                elif isinstance(event, TablesChanged):
                    self.tables_changed.advance(self.tables_changed.value + 1)
                elif self.epochs is not None:
                    self._take_epoch(self.epochs, event)
            self._post_report(link, link_socket)
        finally:
            self.copy.index_taken()
        if isinstance(link, EpochSlaveLink) and link.proven:
            self.parted.note("")
            self._greeting.unpark_all()
        if not self.following and not left:
            self.following = True
            # Tables may have changed while there was no connection, and their messages come now.
            self.tables_changed.advance(self.tables_changed.value + 1)
            self._logged = "", 0.0
            logger.info(
                "following master %s (%s) from log offset %s on",
                self.master.ha,
                "controller mode"
                if self.epochs is not None
                else "TrioMQ"
                if link.master is not None
                else "RocketMQ",
                self.copy.received,
            )
        return left

    def _take_epoch(self, epochs: EpochFile, event: Event) -> None:
        """Bring the epoch file up to date before the bytes that follow.

        Raises: LinkBroken, StoreIoError. Checkpoint: never.
        """
        try:
            if isinstance(event, MasterEpochs):
                epochs.save(epochs.history.cut(self.copy.received))
            elif isinstance(event, EpochBegins) and event.number:  # 0: written in classic mode
                if event.start > self.copy.received and not self.copy.is_empty:
                    raise LinkBroken(f"epoch {event.number} begins behind our log's end")
                epochs.begin(event.number, event.start)
        except ValueError as error:
            raise LinkBroken(f"its epochs go back: {error}") from None
        except OSError as error:
            raise StoreIoError(epochs.path, error) from error

    @contextmanager
    def _bounded_send(self) -> Iterator[None]:
        """Limit the time of a send by the receiving task. Raises: LinkSilent.

        That task also watches for silence: a master that takes nothing must not keep it from that.
        """
        with trio.move_on_after(self.rules.silence_seconds) as sending:
            yield
        if sending.cancelled_caught:
            raise LinkSilent(
                f"it has taken nothing for {self.rules.silence_seconds:g} s"
                " (haHousekeepingInterval)"
            )

    async def _answer_hello(
        self, link: SlaveLink, hello: MasterHello, link_socket: LinkSocket
    ) -> None:
        """Check by its last bytes that this log begins the master's, then introduce this slave."""
        end = link.hello_at
        if end is not None and max(hello.check_start, self.store.first_offset) < end:
            if hello.check_start < self.store.first_offset:
                raise LogsDiffer(
                    "the master's segments are not ours: it compares from log offset"
                    f" {hello.check_start}, our log begins at {self.store.first_offset}; set"
                    " mappedFileSizeCommitLog to its value"
                )
            found = self.store.log_bytes(hello.check_start, end)
            link.check(
                hello,
                zlib.crc32(
                    found
                    if found is not None
                    else await self.store.log_bytes_cold(hello.check_start, end)
                ),
            )
            self.parted.note("")
        with self._bounded_send():
            await link_socket.send(link.introduction())

    def _post_report(self, link: SlaveLink, link_socket: LinkSocket) -> None:
        """Send a report, if there is something to report. Checkpoint: never."""
        report = link.take_report(
            0 if self.copy.is_empty else self.position.value, trio.current_time()
        )
        if report:
            link_socket.post(report)
        if link.confirmed is not None and self.store.confirmations is not None:
            self.store.confirmations.confirm(link.confirmed)

    async def _report(
        self, link: SlaveLink, link_socket: LinkSocket, scope: trio.CancelScope
    ) -> None:
        """Report what the disk has when that changes, and send signs of life.

        The step that appends to the log reports that itself.
        """
        position = self.position

        def post() -> None:
            try:
                self._post_report(link, link_socket)
            except trio.BrokenResourceError:
                return  # the loop below meets it, too

        if position is not self.store.appended:
            position.callbacks.append(post)
        try:
            while isinstance(link, EpochSlaveLink) and not link.proven:
                await self._greeting.park()  # the receiving task asks, and watches for silence
            while True:
                with trio.move_on_at(link.wrote + self.rules.heartbeat_seconds):
                    if position is self.store.appended:
                        await trio.sleep_forever()
                    await position.wait_beyond(link.reported)
                self._post_report(link, link_socket)
                await link_socket.drain()
        except trio.BrokenResourceError:
            scope.cancel()
        finally:
            if position is not self.store.appended:
                position.callbacks.remove(post)
