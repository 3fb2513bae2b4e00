"""One pull loop for each queue that is ours: long polls, one at a time, as fast as the limits allow.

A loop pulls at once when its queue is gained.  The official client waits 500 ms first; since it has read the start offset before that wait,
the wait spares no duplicate, it only delays, so it is not copied.

Source for the reactions to each answer: client/…/impl/consumer/DefaultMQPushConsumerImpl.java#pullMessage, PullAPIWrapper.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import trio

from triomq.client.calls import read_header
from triomq.client.config import ConsumerSettings
from triomq.client.consumer.assignment import Assignment, SendsBack, Turns
from triomq.client.consumer.counts import ConsumerCounts
from triomq.client.consumer.process_queue import Limits, ProcessQueue
from triomq.client.consumer.received import ReceivedMessage
from triomq.client.errors import (
    FlowControl,
    ProtocolBroken,
    RouteNotFound,
    SubscriptionUnknown,
    TrioMQError,
    broker_error,
    request_name,
)
from triomq.client.session import Session
from triomq.client.trouble import TroubleLog
from triomq.remoting.errors import ProtocolError
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.pull import (
    COMMIT_OFFSET,
    SUBSCRIPTION,
    SUSPEND,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.inner_batch import unwrapped
from triomq.remoting.protocol.message import INNER_BATCH
from triomq.remoting.protocol.record import StoredMessage, decode_records

logger = logging.getLogger(__name__)

_AT_ONCE_SECONDS = 1.0
"""an answer without any progress that comes sooner than this did not wait at the broker"""

_NO_SPAN = 2**63
"""the span limit of ordered consumers, which have none"""

_ANSWERS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@attrs.define(eq=False)
class Fetcher:
    """The queues that a consumer owns, and the tasks that pull them."""

    group: str
    session: Session
    settings: ConsumerSettings
    subscriptions: Mapping[str, SubscriptionData]
    deliver: Callable[[list[ReceivedMessage]], None]
    """takes each pulled batch; must not wait"""
    sends_back: SendsBack | None
    nursery: trio.Nursery
    with_expression: bool = False
    """whether each pull carries its filter, so that no heartbeat need have brought it"""
    carries_offsets: bool = True
    """whether pulls carry the group's offset to the broker"""
    turns: Turns | None = None
    """ordered consumers: who is told of verdicts"""
    counts: ConsumerCounts = attrs.field(factory=ConsumerCounts)
    paused: bool = attrs.field(default=False, init=False)
    """whether queues that are gained wait for `resume`, too"""
    stopped: bool = attrs.field(default=False, init=False)
    """whether nothing is pulled any more, of queues that are gained or moved to another offset either"""
    assignments: dict[MessageQueue, Assignment] = attrs.field(factory=dict, init=False)
    _trouble: TroubleLog = attrs.field(factory=lambda: TroubleLog(logger), init=False)

    def take(self, queue: MessageQueue, position: int, stored: int = -1) -> Assignment:
        """Own a queue from now on and pull it from `position`, unless pulling was stopped.  Atomic: no checkpoint."""
        assignment = Assignment(
            queue=queue,
            held=ProcessQueue(position),
            limits=self._limits(len(self.assignments) + 1),
            sends_back=self.sends_back,
            counts=self.counts.of(queue.topic),
            turns=self.turns,
            stored=stored,
            committable=stored,
            paused=self.paused,
        )
        self.assignments[queue] = assignment
        if not self.stopped:
            self.nursery.start_soon(
                self._pull_loop, assignment, name=f"pull {queue.topic} {queue.broker_name} {queue.queue_id}"
            )
        return assignment

    def restart(self, queue: MessageQueue, position: int, *, paused: bool) -> Assignment:
        """Pull an owned queue from another position, or stop doing so; what was pulled before is lost.  Atomic: no checkpoint."""
        before = self.assignments[queue]
        before.lose()
        assignment = self.take(queue, position, before.stored)
        assignment.committable = before.committable
        assignment.locked_until = before.locked_until
        assignment.paused = paused
        return assignment

    def divide_limits(self) -> None:
        """Give each queue its part of the limits that hold for all together, after queues came or went.  Atomic: no checkpoint."""
        limits = self._limits(len(self.assignments))
        for assignment in self.assignments.values():
            assignment.limits = limits
            assignment.look_again()

    def _limits(self, queues: int) -> Limits:
        settings = self.settings
        messages, size = settings.cached_messages_max, settings.cached_bytes_max
        if settings.cached_messages_max_topic is not None:
            messages = max(1, settings.cached_messages_max_topic // max(queues, 1))
        if settings.cached_bytes_max_topic is not None:
            size = max(1, settings.cached_bytes_max_topic // max(queues, 1))
        return Limits(messages, size, settings.cached_span_max if self.turns is None else _NO_SPAN)

    def pause(self) -> None:
        """Pull nothing, of any queue, until `resume`.  Atomic: no checkpoint."""
        self.paused = True
        for assignment in self.assignments.values():
            assignment.pause()

    def resume(self) -> None:
        self.paused = False
        for assignment in self.assignments.values():
            assignment.resume()

    def drop(self, queue: MessageQueue) -> Assignment:
        """Own a queue no longer; returns what it had come to.  Atomic: no checkpoint."""
        assignment = self.assignments.pop(queue)
        assignment.lose()
        self._trouble.forget(_name(queue))
        return assignment

    def stop(self) -> None:
        """Pull no more, for good, while verdicts about what is here still count.  Atomic: no checkpoint."""
        self.stopped = True
        for assignment in self.assignments.values():
            assignment.scope.cancel()

    def drop_all(self) -> list[Assignment]:
        """Own nothing any more."""
        return [self.drop(queue) for queue in list(self.assignments)]

    async def _pull_loop(self, assignment: Assignment) -> None:
        queue = assignment.queue
        with assignment.scope:
            while True:
                await assignment.wait_room()
                if queue.topic not in self.subscriptions:  # unsubscribed: the next round takes the queue away
                    await trio.sleep(self.settings.flow_control_delay)
                    continue
                position, began = assignment.held.position, trio.current_time()
                assignment.pulled_at = began
                try:
                    with trio.CancelScope() as assignment.poll:
                        response, header = await self._pull(assignment)
                    if assignment.ending:
                        return  # the answer was here before we could be cancelled, and somebody else may have the queue
                    if assignment.poll.cancelled_caught:
                        continue  # paused: whatever the broker sends now is asked for again later
                    if queue.topic not in self.subscriptions:
                        continue  # unsubscribed meanwhile
                    assignment = self._take_answer(assignment, response, header)
                    if response.code == ResponseCode.SUCCESS:
                        assignment.counts.note_pull(assignment.held.position - position, trio.current_time() - began)
                        if self.settings.pull_interval:
                            await trio.sleep(self.settings.pull_interval)
                    if assignment.held.position == position and trio.current_time() - began < _AT_ONCE_SECONDS:
                        await trio.sleep(self.settings.flow_control_delay)  # a broker that does not hold pulls
                except FlowControl:
                    await trio.sleep(self.settings.flow_control_delay)
                except TrioMQError as error:
                    self._trouble.failed(_name(queue), error)
                    await trio.sleep(self.settings.error_delay)
                else:
                    self._trouble.worked(_name(queue))

    async def _pull(self, assignment: Assignment) -> tuple[Command, PullMessageResponseHeader]:
        """Send one long poll and wait for its answer."""
        address = self._address(assignment)
        subscription = self.subscriptions[assignment.queue.topic]
        await self.session.greet(address)
        header = self._header(assignment, subscription, master=assignment.broker_id == 0)
        command = request(RequestCode.PULL_MESSAGE, header)
        response = await self.session.invoke(address, command, self.settings.pull_timeout)
        if response.code not in _ANSWERS:
            error = broker_error(response.code, response.remark, address, request_name(command.code))
            if isinstance(error, SubscriptionUnknown):
                self.session.ungreeted(address)  # the next pull brings a heartbeat first
            raise error
        return response, read_header(response, PullMessageResponseHeader, address)

    def _address(self, assignment: Assignment) -> str:
        name = assignment.queue.broker_name
        address = self.session.routes.any_address(name, assignment.broker_id)
        if address is None:
            self.session.doubt(assignment.queue.topic)
            raise RouteNotFound(assignment.queue.topic, f"broker {name} is in no route", offered=self.session.routes.topic(assignment.queue.topic) is not None)
        return address

    def _header(self, assignment: Assignment, subscription: SubscriptionData, *, master: bool) -> PullMessageHeader:
        queue = assignment.queue
        committed = assignment.to_store
        commit = committed > 0 and master and self.carries_offsets
        flags = SUSPEND | (COMMIT_OFFSET if commit else 0) | (SUBSCRIPTION if self.with_expression else 0)
        return PullMessageHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=assignment.held.position,
            message_count_max=self.settings.pull_batch,
            message_bytes_max=self.settings.pull_batch_bytes,
            sys_flag=flags,
            commit_offset=committed if commit else 0,
            suspend_timeout_ms=round(self.settings.suspend * 1000),
            subscription=subscription.sub_string if self.with_expression else None,
            sub_version=0 if self.with_expression else subscription.sub_version,
            expression_type=subscription.expression_type,
            broker_name=queue.broker_name,
        )

    def _take_answer(self, assignment: Assignment, response: Command, header: PullMessageResponseHeader) -> Assignment:
        """Act on one answer; returns the assignment to go on with.  Atomic: no checkpoint."""
        assignment.broker_id = header.suggested_broker_id
        if response.code == ResponseCode.SUCCESS:
            try:
                records = decode_records(response.body)
                if any(record.sys_flag & INNER_BATCH for record in records):
                    records = unwrapped(records, assignment.held.position)
            except ProtocolError as error:
                raise ProtocolBroken(f"broker {assignment.queue.broker_name} sent broken records: {error}") from error
            if self.session.namespace is not None:
                for record in records:
                    self.session.namespace.own_record(record)
            settled = self.sends_back is None
            wanted = self._wanted(assignment.queue.topic, records)
            messages = [ReceivedMessage(record, assignment, settled) for record in wanted]
            fresh = assignment.held.put(messages, header.next_begin_offset)
            if fresh:
                self.deliver(fresh)
            return assignment
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            logger.warning(
                "offset %d of %s is not valid (%s): going on at %d, the queue has %d to %d",
                assignment.held.position, assignment.queue, response.remark,
                header.next_begin_offset, header.min_offset, header.max_offset,
            )  # fmt: skip
            return self._jump(assignment, header.next_begin_offset)
        assignment.held.put((), header.next_begin_offset)
        return assignment

    def _jump(self, assignment: Assignment, position: int) -> Assignment:
        """Go on at another offset: what was pulled before is lost, the same task pulls on.  Atomic: no checkpoint.

        An assignment that is not the queue's any more does not take its place again.
        """
        if self.assignments.get(assignment.queue) is not assignment:
            return assignment
        successor = assignment.successor(position)
        self.assignments[assignment.queue] = successor
        return successor

    def _wanted(
        self, topic: str, records: Sequence[StoredMessage]
    ) -> Iterator[StoredMessage] | Sequence[StoredMessage]:
        """Check tags as text: the broker compares hashes only."""
        tags = self.subscriptions[topic].tags
        if not tags:
            return records
        return (record for record in records if record.tag in tags)


def _name(queue: MessageQueue) -> str:
    return f"pull from {queue.topic} {queue.broker_name}:{queue.queue_id}"
