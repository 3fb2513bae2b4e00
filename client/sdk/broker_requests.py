"""The requests that brokers send to a consumer, and its answers.

GET_CONSUMER_RUNNING_INFO (307), GET_CONSUMER_STATUS_FROM_CLIENT (221), RESET_CONSUMER_CLIENT_OFFSET
(220) and CONSUME_MESSAGE_DIRECTLY (309): an administrator asks a broker, and the broker asks the
members of the group.

Source: client/…/impl/ClientRemotingProcessor.java,
impl/consumer/DefaultMQPushConsumerImpl.java#consumerRunningInfo,
ConsumeMessageConcurrentlyService.java#consumeMessageDirectly.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf

import attrs
import trio

from triomq.client.core.arguments import require_nothing
from triomq.client.core.config import ConsumerSettings
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.delivery import AnyHandler
from triomq.client.receiving.membership import Membership
from triomq.client.receiving.pop.pop_membership import PopMembership
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.replier import Replier
from triomq.remoting.client.connector import PeerHandler
from triomq.remoting.core.errors import ProtocolError, Rejected
from triomq.remoting.core.task_dump import format_tasks
from triomq.remoting.protocol.bodies.heartbeat import ConsumerData
from triomq.remoting.protocol.bodies.offsets import ConsumerStatus, QueueOffsets
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.running import (
    ConsumeDirectlyResult,
    ConsumeRates,
    ConsumerRunning,
    PopQueueState,
    ProcessQueueState,
)
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.client import (
    ConsumeDirectlyHeader,
    ConsumerRunningHeader,
    ConsumerStatusHeader,
)
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader
from triomq.remoting.protocol.record_reader import decode_records

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION = "CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"
CLIENT_VERSION = "TrioMQ"


@attrs.define(eq=False)
class DirectDelivery:
    """The owner of a message of CONSUME_MESSAGE_DIRECTLY: settling it only sets the ``result``."""

    group: str
    queue: MessageQueue
    lost: bool = False
    locked_until: float = inf
    ending: bool = False
    result: str | None = None
    replier: Replier | None = None

    def settle(self, message: ReceivedMessage) -> bool:
        self.result = CR_SUCCESS
        return True

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        self.result = CR_LATER
        await trio.lowlevel.checkpoint()
        return True

    def abandon(self, message: ReceivedMessage) -> None:
        """Do nothing: the message is also in its queue."""


@attrs.define(eq=False)
class BrokerRequests:
    """Answers the brokers' requests to one consumer."""

    membership: Membership | PopMembership
    describe: Callable[[], ConsumerData]
    concurrency: int = 0
    _offered: list[tuple[AnyHandler, bool]] = attrs.field(factory=list, init=False)
    """the handlers that are running, and whether each takes batches; the last one is used"""
    started_ms: int = attrs.field(factory=lambda: time.time_ns() // 1_000_000, init=False)

    def table(self) -> Mapping[int, PeerHandler]:
        """Return the handlers by request code."""
        handlers: dict[int, PeerHandler] = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        return {code: partial(_answer, handler) for code, handler in handlers.items()}

    @contextmanager
    def offering(self, handler: AnyHandler, *, batches: bool = False) -> Iterator[None]:
        """Offer this handler for CONSUME_MESSAGE_DIRECTLY for the time of the block."""
        offered = handler, batches
        self._offered.append(offered)
        try:
            yield
        finally:
            self._offered.remove(offered)

    def _check_group(self, group: str) -> None:
        if group != self.membership.spec.group:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{group}> not exist in this consumer",
            )

    # GET_CONSUMER_RUNNING_INFO

    async def _running(self, address: str, command: Command) -> Command:
        header = command.header(ConsumerRunningHeader)
        self._check_group(header.consumer_group)
        await trio.lowlevel.checkpoint()
        return response_to(
            command, ResponseCode.SUCCESS, body=self.running(with_tasks=header.jstack).encode()
        )

    def running(self, *, with_tasks: bool) -> ConsumerRunning:
        """Return the consumer's state, as ``mqadmin group status`` shows it."""
        data, spec = self.describe(), self.membership.spec
        rates = self.membership.fetcher.counts.rates(trio.current_time())
        settings = {  # under Java's names, durations in seconds
            field.metadata["java"]: str(getattr(self.membership.settings, field.name))
            for field in attrs.fields(ConsumerSettings)
            if "java" in field.metadata
        }
        root = trio.lowlevel.current_root_task() if with_tasks else None
        return ConsumerRunning(
            properties={
                "PROP_NAMESERVER_ADDR": self.membership.session.name_servers,
                "PROP_THREADPOOL_CORE_SIZE": str(self.concurrency),
                "PROP_CONSUMEORDERLY": str(spec.turns is not None).lower(),
                "PROP_CONSUME_TYPE": data.consume_type,
                "PROP_CLIENT_VERSION": CLIENT_VERSION,
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "consumerGroup": spec.group,
                "messageModel": data.message_model,
                "consumeFromWhere": data.consume_from_where,
                **settings,
            },
            subscriptions=data.subscriptions,
            queues={
                assignment.queue: _queue_state(assignment)
                for assignment in self.membership.fetcher.owned()
            },
            pop_queues=(
                {queue: PopQueueState() for queue in self.membership.fetcher.popped_queues()}
                if isinstance(self.membership, PopMembership)
                else {}
            ),
            rates={
                topic: ConsumeRates(
                    pull_rt=rate.pull_seconds * 1000,
                    pull_tps=rate.pulled_per_second,
                    consume_rt=rate.handling_seconds * 1000,
                    consume_ok_tps=rate.done_per_second,
                    consume_failed_tps=rate.failed_per_second,
                    consume_failed_count=rate.failed_in_the_last_hour,
                )
                for topic, rate in rates.items()
            },
            jstack=None if root is None else format_tasks(root),
        )

    # GET_CONSUMER_STATUS_FROM_CLIENT, RESET_CONSUMER_CLIENT_OFFSET

    async def _status(self, address: str, command: Command) -> Command:
        header = command.header(ConsumerStatusHeader)
        self._check_group(header.group)
        await trio.lowlevel.checkpoint()
        offsets = {
            assignment.queue: assignment.to_store
            for assignment in self.membership.fetcher.owned()
            if assignment.queue.topic == header.topic and assignment.to_store >= 0
        }
        return response_to(
            command, ResponseCode.SUCCESS, body=ConsumerStatus(message_queue_table=offsets).encode()
        )

    async def _reset(self, address: str, command: Command) -> Command | None:
        header = command.header(ResetOffsetHeader)
        if header.group != self.membership.spec.group or not command.body:
            await trio.lowlevel.checkpoint()
            return None
        wanted = QueueOffsets.decode(command.body).offset_table
        moved = await self.membership.reset(
            {q: o for q, o in wanted.items() if q.topic == header.topic and o >= 0}
        )
        logger.info(
            "group %s: broker %s reset %d queues of %s",
            self.membership.spec.group,
            address,
            len(moved),
            header.topic,
        )
        return None if command.is_oneway else response_to(command, ResponseCode.SUCCESS)

    # CONSUME_MESSAGE_DIRECTLY

    async def _consume_directly(self, address: str, command: Command) -> Command:
        header = command.header(ConsumeDirectlyHeader)
        self._check_group(header.consumer_group)
        if not self._offered:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                "this consumer iterates and has no handler: only a consumer with a handler can"
                " handle a message on demand",
            )
        records = decode_records(command.body)
        if len(records) != 1:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"one message is wanted, not {len(records)}")
        if self.membership.session.namespace is not None:
            self.membership.session.namespace.own_record(records[0])
        queue = MessageQueue(records[0].topic, header.broker_name or "", records[0].queue_id)
        owner = DirectDelivery(
            self.membership.spec.group, queue, replier=self.membership.fetcher.replier
        )
        message = ReceivedMessage(records[0], owner)
        began, remark = trio.current_time(), None
        try:
            handler: object
            handler, batches = self._offered[-1]
            require_nothing(handler, await handler([message] if batches else message))
            result = owner.result or CR_SUCCESS
        except Exception as error:  # the handler's error is the answer
            result = CR_THROW_EXCEPTION
            remark = "".join(traceback.format_exception(error, limit=-20))
        body = ConsumeDirectlyResult(
            consume_result=result,
            order=self.membership.spec.turns is not None,
            remark=remark,
            spent_ms=round((trio.current_time() - began) * 1000),
        )
        return response_to(command, ResponseCode.SUCCESS, body=body.encode())


async def _answer(handler: PeerHandler, address: str, command: Command) -> Command | None:
    """Answer a request, also one that cannot be read."""
    try:
        return await handler(address, command)
    except ProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"the request cannot be read: {error}") from error


def _queue_state(assignment: Assignment) -> ProcessQueueState:
    held = assignment.held
    offsets = [message.queue_offset for message in held]
    return ProcessQueueState(
        commit_offset=max(assignment.to_store, 0),
        cached_min_offset=offsets[0] if offsets else 0,
        cached_max_offset=offsets[-1] if offsets else 0,
        cached_count=len(offsets),
        cached_size_mib=held.size_bytes // _MIB,
        locked=assignment.turns is not None and trio.current_time() < assignment.locked_until < inf,
        last_lock_timestamp=0,
        dropped=assignment.lost,
        last_pull_timestamp=_wall_ms(assignment.pulled_at),
        last_consume_timestamp=_wall_ms(assignment.settled_at),
    )


def _wall_ms(at: float) -> int:
    """Return a trio time as milliseconds since 1970, or 0 for "never"."""
    return round((time.time() - (trio.current_time() - at)) * 1000) if at else 0
