"""One pull loop for each owned queue: long polls, one at a time, as fast as the limits allow.

A failed pull is repeated after ``error_delay`` while the queue is owned, even if its broker accepts
no connection. A loop pulls as soon as its queue is gained. (The official client waits 500 ms, but
has read the start offset before, so its wait spares no duplicate.)

Source for the reactions to each answer:
client/…/impl/consumer/DefaultMQPushConsumerImpl.java#pullMessage, PullAPIWrapper.java.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import attrs
import trio

from triomq.client.core.calls import read_header
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import (
    FlowControl,
    ProtocolBroken,
    RouteNotFound,
    SubscriptionUnknown,
    TrioMQError,
    broker_error,
    request_name,
)
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.retry import concerns_route
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.member_spec import MemberSpec
from triomq.client.receiving.process_queue import ProcessQueue, PullLimits
from triomq.client.receiving.rates import ConsumerCounts
from triomq.client.receiving.replier import Replier
from triomq.remoting.core.errors import ProtocolError
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
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.sys_flags import INNER_BATCH

logger = logging.getLogger(__name__)

_AT_ONCE_SECONDS = 1.0
"""An answer without progress that comes sooner was not held by the broker."""

RESET_REMARK = "OFFSET_RESET"
"""What the answer to a pull says when an operator has moved the group: a status of Java's store."""

_NO_SPAN = 2**63
"""The span limit of ordered consumers: none."""

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

    session: Session
    settings: ConsumerSettings
    spec: MemberSpec
    nursery: trio.Nursery
    counts: ConsumerCounts = attrs.field(factory=ConsumerCounts, init=False)
    paused: bool = attrs.field(default=False, init=False)
    """whether all queues wait for ``resume``, those gained later included"""
    stopped: bool = attrs.field(default=False, init=False)
    """whether nothing is pulled any more, not even from queues gained later"""
    assignments: dict[MessageQueue, Assignment] = attrs.field(factory=dict, init=False)
    replier: Replier = attrs.field(init=False)
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    def __attrs_post_init__(self) -> None:
        self.replier = Replier(self.spec.group, self.session)

    def owned(self) -> list[Assignment]:
        return list(self.assignments.values())

    def take(self, queue: MessageQueue, position: int, stored: int = -1) -> Assignment:
        """Own a queue from now on and pull it from ``position``, unless pulling was stopped."""
        assignment = Assignment(
            queue=queue,
            held=ProcessQueue(position),
            limits=self._limits(len(self.assignments) + 1),
            sends_back=self.spec.sends_back,
            group=self.spec.group,
            counts=self.counts.of(queue.topic),
            turns=self.spec.turns,
            replier=self.replier,
            stored=stored,
            committable=stored,
            paused=self.paused,
        )
        self.assignments[queue] = assignment
        if not self.stopped:
            self.nursery.start_soon(
                self._pull_loop,
                assignment,
                name=f"pull {queue.topic} {queue.broker_name} {queue.queue_id}",
            )
        return assignment

    def restart(self, queue: MessageQueue, position: int, *, paused: bool) -> Assignment:
        """Continue an owned queue at another position, or pause it; drop what was pulled before."""
        before = self.assignments[queue]
        before.lose()
        assignment = self.take(queue, position, before.stored)
        assignment.limits = before.limits
        assignment.broker_id = before.broker_id
        assignment.committable = before.committable
        assignment.locked_until = before.locked_until
        assignment.paused = paused
        return assignment

    def divide_limits(self) -> None:
        """Divide the limits for the whole consumer among its queues, after queues came or went."""
        limits = self._limits(len(self.assignments))
        for assignment in self.assignments.values():
            assignment.limits = limits
            assignment.recheck()

    def _limits(self, queues: int) -> PullLimits:
        settings = self.settings
        messages, size = settings.cached_messages_max, settings.cached_bytes_max
        if settings.cached_messages_max_topic is not None:
            messages = max(1, settings.cached_messages_max_topic // max(queues, 1))
        if settings.cached_bytes_max_topic is not None:
            size = max(1, settings.cached_bytes_max_topic // max(queues, 1))
        return PullLimits(
            messages, size, settings.cached_span_max if self.spec.turns is None else _NO_SPAN
        )

    def pause(self) -> None:
        """Pull nothing, of any queue, until ``resume``."""
        self.paused = True
        for assignment in self.assignments.values():
            assignment.pause()

    def resume(self) -> None:
        self.paused = False
        for assignment in self.assignments.values():
            assignment.resume()

    def drop(self, queue: MessageQueue) -> Assignment:
        """Own a queue no longer; return its assignment, which has the offset to store."""
        assignment = self.assignments.pop(queue)
        assignment.lose()
        self._failures.forget(_name(queue))
        return assignment

    def stop(self) -> None:
        """Pull no more, for good; settling messages that were pulled still counts."""
        self.stopped = True
        for assignment in self.assignments.values():
            assignment.scope.cancel()

    def drop_all(self) -> None:
        """Own no queue any more."""
        for queue in list(self.assignments):
            self.drop(queue)

    async def _pull_loop(self, assignment: Assignment) -> None:
        queue = assignment.queue
        with assignment.scope:
            while True:
                await assignment.wait_room()
                if queue.topic not in self.spec.subscriptions:
                    # Unsubscribed: the next rebalance takes the queue away.
                    await trio.sleep(self.settings.flow_control_delay)
                    continue
                position, began = assignment.held.position, trio.current_time()
                assignment.pulled_at = began
                try:
                    with trio.CancelScope() as assignment.poll:
                        response, header = await self._pull(assignment)
                    if assignment.ending:
                        # The answer came before this task could be cancelled; another member may
                        # have the queue.
                        return
                    if assignment.poll.cancelled_caught:
                        continue  # paused: the same pull is repeated after `resume`
                    if queue.topic not in self.spec.subscriptions:
                        continue  # unsubscribed
                    self._take_answer(assignment, response, header)
                    if assignment.lost:  # another task continues at a valid offset
                        return
                    if response.code == ResponseCode.SUCCESS:
                        assignment.counts.note_pull(
                            assignment.held.position - position, trio.current_time() - began
                        )
                        if self.settings.pull_interval:
                            await trio.sleep(self.settings.pull_interval)
                    if (
                        assignment.held.position == position
                        and trio.current_time() - began < _AT_ONCE_SECONDS
                    ):
                        # This broker does not hold pulls.
                        await trio.sleep(self.settings.flow_control_delay)
                except FlowControl:
                    await trio.sleep(self.settings.flow_control_delay)
                except TrioMQError as error:
                    self._failures.failed(_name(queue), error)
                    if concerns_route(error):
                        self.session.finder.invalidate(queue.topic)
                    await trio.sleep(self.settings.error_delay)
                else:
                    self._failures.worked(_name(queue))

    async def _pull(self, assignment: Assignment) -> tuple[Command, PullMessageResponseHeader]:
        """Send one long poll and return its answer."""
        address = self._address(assignment)
        subscription = self.spec.subscriptions[assignment.queue.topic]
        await self.session.heartbeats.ensure(address)
        # A member that its broker may have forgotten knows old offsets.
        commits = assignment.broker_id == 0 and not self.session.heartbeats.may_have_forgotten(
            address
        )
        header = self._header(assignment, subscription, commits=commits)
        command = request(RequestCode.PULL_MESSAGE, header)
        response = await self.session.invoke(address, command, self.settings.pull_timeout)
        if response.code not in _ANSWERS:
            error = broker_error(
                response.code, response.remark, address, request_name(command.code)
            )
            if isinstance(error, SubscriptionUnknown):
                # The next pull brings a heartbeat first.
                self.session.heartbeats.unregistered(address)
            raise error
        return response, read_header(response, PullMessageResponseHeader, address)

    def _address(self, assignment: Assignment) -> str:
        name = assignment.queue.broker_name
        address = self.session.routes.any_address(name, assignment.broker_id)
        if address is None:
            self.session.finder.invalidate(assignment.queue.topic)
            raise RouteNotFound(
                assignment.queue.topic,
                f"broker {name} is in no route",
                offered=self.session.routes.topic(assignment.queue.topic) is not None,
            )
        return address

    def _header(
        self, assignment: Assignment, subscription: SubscriptionData, *, commits: bool
    ) -> PullMessageHeader:
        queue = assignment.queue
        committed = assignment.to_store
        # A pull that carries its filter does not depend on a heartbeat.
        with_filter = self.spec.sends_back is None
        commit = committed > 0 and commits and not with_filter and not self.spec.broadcast
        flags = SUSPEND | (COMMIT_OFFSET if commit else 0) | (SUBSCRIPTION if with_filter else 0)
        return PullMessageHeader(
            consumer_group=self.spec.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=assignment.held.position,
            message_count_max=self.settings.pull_batch,
            message_bytes_max=self.settings.pull_batch_bytes,
            sys_flag=flags,
            commit_offset=committed if commit else 0,
            suspend_timeout_ms=round(self.settings.suspend * 1000),
            subscription=subscription.sub_string if with_filter else None,
            sub_version=0 if with_filter else subscription.sub_version,
            expression_type=subscription.expression_type,
            broker_name=queue.broker_name,
        )

    def _take_answer(
        self, assignment: Assignment, response: Command, header: PullMessageResponseHeader
    ) -> None:
        """Act on one answer."""
        assignment.broker_id, assignment.end = header.suggested_broker_id, header.max_offset
        if response.code == ResponseCode.SUCCESS:
            try:
                records = decode_records(response.body)
                if any(record.sys_flag & INNER_BATCH for record in records):
                    records = unwrapped(records, assignment.held.position)
            except ProtocolError as error:
                raise ProtocolBroken(
                    f"broker {assignment.queue.broker_name} sent broken records: {error}"
                ) from error
            if self.session.namespace is not None:
                for record in records:
                    self.session.namespace.own_record(record)
            settled = self.spec.sends_back is None
            wanted = self._wanted(assignment.queue.topic, records)
            make_message = self.spec.make_message
            messages = [make_message(record, assignment, settled) for record in wanted]
            fresh = assignment.held.put(messages, header.next_begin_offset)
            if fresh:
                self.spec.deliver(fresh)
        elif response.code == ResponseCode.PULL_OFFSET_MOVED:
            position, reset = header.next_begin_offset, response.remark == RESET_REMARK
            logger.log(
                logging.INFO if reset else logging.WARNING,
                "offset %d of %s is not valid (%s): continuing at %d, the queue has %d to %d",
                assignment.held.position, assignment.queue, response.remark,
                position, header.min_offset, header.max_offset,
            )  # fmt: skip
            # A queue that was lost meanwhile is not taken again.
            owned = self.assignments.get(assignment.queue) is assignment
            # After a reset nothing that was pulled before may be handled, also at this position.
            if owned and (position != assignment.held.position or reset):
                moved = self.restart(assignment.queue, position, paused=assignment.paused)
                moved.committable = position if moved.sends_back is None else -1
        else:
            assignment.held.put((), header.next_begin_offset)

    def _wanted(
        self, topic: str, records: Sequence[StoredMessage]
    ) -> Iterator[StoredMessage] | Sequence[StoredMessage]:
        """Return the records with the subscribed tags: the broker compares only hashes of tags."""
        tags = self.spec.subscriptions[topic].tags
        if not tags:
            return records
        return (record for record in records if record.tag in tags)


def _name(queue: MessageQueue) -> str:
    return f"pull from {queue.topic} {queue.broker_name}:{queue.queue_id}"
