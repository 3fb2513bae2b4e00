"""``TraceDispatcher``: sends trace records in the background, and never delays or fails a message.

    open_trace ─┬ session of its own: connections, heartbeats, a client id
                └ message trace: sends when 10 records wait, or after 5 s

Records wait in a buffer of 2048. What comes while it is full is dropped, and so is a batch that
cannot be sent; both are counted, and logged once in a while.

Source for names and figures: client/…/trace/AsyncTraceDispatcher.java.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.config import ClientSettings, ProducerSettings
from triomq.client.core.errors import RouteNotFound, TrioMQError
from triomq.client.core.heartbeats import JoinedGroups
from triomq.client.core.message_trace import MessageTrace
from triomq.client.core.session import open_session
from triomq.client.core.trace_records import TraceBatch, TraceRecord, pack_traces
from triomq.client.sending.encoding import prepare
from triomq.client.sending.sender import Sender
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.names import GROUP_LENGTH_MAX

logger = logging.getLogger(__name__)

BUFFERED_MAX = 2048
"""Records that wait; more are dropped."""
DUE_RECORDS = 10
"""Records with which a trace message is sent at once (Java: traceMsgBatchNum)."""
FLUSH_SECONDS = 5.0
"""After this time also fewer records are sent."""
SEND_SECONDS = 5.0
"""Time limit for one trace message, and for all that are left when the client stops."""
_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
_INSTANCE = "PID_CLIENT_INNER_TRACE_PRODUCER"
_numbers = itertools.count(1)


@attrs.define(eq=False)
class TraceDispatcher:
    """The buffer and the task that empties it."""

    topic: str
    _sender: Sender
    _settings: ProducerSettings
    dropped: int = attrs.field(default=0, init=False)
    """records that were not sent"""
    sent: int = attrs.field(default=0, init=False)
    _buffer: deque[TraceRecord] = attrs.field(factory=deque, init=False)
    _due: trio.Event = attrs.field(factory=trio.Event, init=False)
    """set when enough records wait"""
    _closing: bool = attrs.field(default=False, init=False)
    _scope: trio.CancelScope = attrs.field(
        factory=lambda: trio.CancelScope(shield=True), init=False
    )
    _failure: type[Exception] | None = attrs.field(default=None, init=False)
    """the kind of the last failure; None after a success"""
    _log_limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def append(self, records: Sequence[TraceRecord]) -> None:
        """Take records to be sent later; never waits.

        Checkpoint: never.
        """
        room = BUFFERED_MAX - len(self._buffer)
        self._buffer.extend(records[:room])
        if len(records) > room:
            self._drop(len(records) - room)
            self._log_limit.log(
                logger,
                logging.WARNING,
                "message trace: the buffer of %d records is full, %d were dropped until now;"
                " messages themselves are not affected: let brokers take traces faster (a broker of"
                " its own for topic %s), or trace fewer clients",
                BUFFERED_MAX,
                self.dropped,
                self.topic,
            )
        if len(self._buffer) >= DUE_RECORDS:
            self._due.set()

    def new_id(self) -> str:
        """Return an id for a call of a handler."""
        return self._sender.ids.next(time.time_ns() // 1_000_000)

    async def send_waiting(self) -> None:
        """Send what waits until ``close``; shielded, so that the last records leave as well."""
        with self._scope:
            while True:
                with trio.move_on_after(FLUSH_SECONDS):
                    await self._due.wait()
                self._due = trio.Event()
                await self._send_buffered()
                if self._closing:
                    break
        if self._scope.cancelled_caught:
            self._drop(len(self._buffer))
            logger.warning(
                "message trace: the last records of topic %s did not leave in time, %d were dropped"
                " until now; messages themselves are not affected",
                self.topic,
                self.dropped,
            )

    def close(self, seconds: float) -> None:
        """Let ``run`` send what waits, for at most ``seconds``, and end."""
        self._closing = True
        self._scope.deadline = trio.current_time() + seconds
        self._due.set()

    async def _send_buffered(self) -> None:
        while self._buffer:
            taken = list(self._buffer)
            self._buffer.clear()
            unsent = len(taken)
            try:
                for batch in pack_traces(taken):
                    await self._send(batch)
                    unsent -= batch.records
            finally:
                self._drop(unsent)

    async def _send(self, batch: TraceBatch) -> None:
        now_ms = time.time_ns() // 1_000_000
        try:
            message = prepare(
                self.topic,
                batch.text.encode("utf-8", "replace"),
                self._settings,
                self._sender.ids.next(now_ms),
                now_ms,
                keys=batch.keys.split(" "),
            )
            await self._sender.send(message)
        except Exception as error:  # an RPC hook's too: messages must go on without their trace
            self._drop(batch.records)
            if self._failure is not type(error):
                self._failure = type(error)
                logger.warning("message trace: %s", self._complaint(error))
            return
        self.sent += batch.records
        if self._failure is not None:
            self._failure = None
            logger.info(
                "message trace works again; %d records were dropped until now", self.dropped
            )

    def _complaint(self, error: Exception) -> str:
        if isinstance(error, RouteNotFound):
            return (
                f"topic {self.topic} does not exist, so records are dropped: set"
                " traceTopicEnable=true on a broker and restart it, or call `mqadmin topic create"
                f" -t {self.topic} -c CLUSTER`; messages themselves are not affected"
            )
        known = isinstance(error, TrioMQError)
        return (
            f"records of topic {self.topic} are dropped until it works again:"
            f" {error if known else repr(error)}; messages themselves are not affected"
        )

    def _drop(self, count: int) -> None:
        self.dropped += count


@asynccontextmanager
async def open_trace(
    group: str,
    side: str,
    namesrv: Sequence[str],
    settings: ClientSettings,
    *,
    consume_timeout: float = inf,
) -> AsyncIterator[MessageTrace | None]:
    """Trace a client for the length of the block; yield the hook that it needs, or None if off.

    ``side``: PRODUCE or CONSUME. At the end the last records are sent, for at most
    ``SEND_SECONDS``; after an error, for ``farewell_timeout``.

    Raises: ``SettingsError``, ``NoNameServer``.
    """
    if not settings.trace:
        yield None
        return
    own = attrs.evolve(
        settings,
        trace=False,
        tracer_provider=None,
        namespace=None,
        instance_name=f"{_INSTANCE}_{';'.join(namesrv)}",
    )
    tail = f"-{side}-{next(_numbers)}"
    name = f"{_GROUP_PREFIX}-{group}"[: GROUP_LENGTH_MAX - len(tail)] + tail
    sending = ProducerSettings(client=own, send_timeout=SEND_SECONDS)
    async with open_session(namesrv, own, JoinedGroups(producer_group=name)) as session:
        dispatcher = TraceDispatcher(settings.trace_topic, Sender(name, session, sending), sending)
        async with open_background() as nursery:
            nursery.start_soon(dispatcher.send_waiting, name="message trace")
            seconds = settings.farewell_timeout
            try:
                yield MessageTrace(
                    group,
                    settings.trace_topic,
                    dispatcher.append,
                    dispatcher.new_id,
                    consume_timeout,
                )
                seconds = SEND_SECONDS
            finally:
                dispatcher.close(seconds)
