"""RECALL_MESSAGE (370): cancel a message with a time of delivery, and what slaves ask of timers.

A recall is stored like a timed message, in the slot of the one that it cancels; it is never
delivered itself. Success means that it is stored, not that the message was still waiting; after a
time-out of the disk or a slave, too, as in Java, but not if a broker without it may become master.
Source: broker/processor/RecallMessageProcessor.java, AdminBrokerProcessor.java#getTimerMetrics.
"""

from __future__ import annotations

import attrs

from triomq.broker.processors.send.pipeline import SendPipeline
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.timers.timer_rules import recall_key
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.core.errors import FlushFailed, IllegalMessage, StoreUnavailable
from triomq.broker.store.log.durability import DurabilityResult
from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol.bodies.timer import TimerMetrics
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import RecallMessageHeader, RecallMessageResponseHeader
from triomq.remoting.protocol.message_properties import (
    PRODUCER_GROUP,
    TAGS,
    TIMER_DELETE_KEY,
    UNIQ_KEY,
    joined_properties,
)
from triomq.remoting.protocol.names import TIMER_TOPIC
from triomq.remoting.protocol.recall_handle import RecallHandle
from triomq.remoting.server.requests import BatchResult, Deferred, Request, Response

TAG = "_RECALL_TAG_"
AWAY = "recall failed, broker service not available"


@attrs.define(eq=False)
class Recalls:
    """The handlers."""

    pipeline: SendPipeline
    live: LiveSettings
    broker_name: str
    slave: bool

    def recall(self, requests: list[Request]) -> BatchResult:
        """Store the recalls of a batch of requests with one append.

        They are answered when they are as durable as messages. Checkpoint: never.
        """
        answers: list[Response | None] = []
        recalls: dict[int, tuple[RecallHandle, Draft]] = {}
        for index, request in enumerate(requests):
            try:
                handle, _ = recalls[index] = self._recall_of(request)
            except Rejected as rejected:
                answers.append(Response(rejected.code, remark=rejected.remark))
            else:
                answers.append(Response(header=RecallMessageResponseHeader(handle.message_id)))
        if not recalls:
            return answers
        pipeline, timers = self.pipeline, self._timers()
        target = pipeline.admission.target_of(TIMER_TOPIC)
        assert target is not None
        try:
            pipeline.append_copies([draft for _, draft in recalls.values()], target)
        except StoreUnavailable as error:
            refusal = Response(ResponseCode.SYSTEM_ERROR, remark=_failed(error))
            for index in recalls:
                answers[index] = refusal
            return answers
        # At once: the message may be due before the record of this recall is read again.
        for handle, _ in recalls.values():
            slot = timers.rules.slot_of(handle.deliver_ms)
            timers.schedule.recall(slot, self._key(handle, timers))
        durability, end = pipeline.durability, pipeline.store.appended.value
        if durability.durable_now(end):
            return answers
        deferred = Deferred(requests)

        def on_durable(result: DurabilityResult | FlushFailed) -> None:
            if isinstance(result, FlushFailed):
                deferred.fail(result)
                return
            if result is DurabilityResult.NOT_CONFIRMED:  # the next master may lack it
                refusal = Response(ResponseCode.SYSTEM_ERROR, remark=result.value)
                for index in recalls:
                    answers[index] = refusal
            deferred.finish(lambda: answers)

        durability.when_durable(end, on_durable)
        return deferred

    def _recall_of(self, request: Request) -> tuple[RecallHandle, Draft]:
        """Return what a request recalls, and its record. Raises: Rejected."""
        self._check_open()
        timers = self._timers()
        handle = self._handle(request.header, timers)
        draft = self._draft(request, handle, timers)
        try:
            self.pipeline.store.check_draft(draft)
        except IllegalMessage as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, _failed(error)) from None
        return handle, draft

    def _timers(self) -> Timers:
        timers = self.pipeline.timers
        if timers is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, _failed("timerWheelEnable=false: nothing waits")
            )
        return timers

    def _check_open(self) -> None:
        if not self.live.recalls:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden (recallMessageEnable=false)",
            )
        if self.slave:
            raise Rejected(ResponseCode.SLAVE_NOT_AVAILABLE, AWAY)
        closed = self.pipeline.admission.closed_until(self.pipeline.clock_ms())
        if closed is not None or not (self.live.writable or self.live.recalls_when_read_only):
            raise Rejected(ResponseCode.SERVICE_NOT_AVAILABLE, AWAY)

    def _handle(self, header: RecallMessageHeader, timers: Timers) -> RecallHandle:
        if self.pipeline.topics.find(header.topic) is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except RemoteProtocolError:
            raise Rejected(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from None
        if handle.topic != header.topic:
            raise Rejected(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self.broker_name:
            raise Rejected(ResponseCode.ILLEGAL_OPERATION, AWAY)
        left = handle.deliver_ms - timers.clock_ms()
        if not 0 < left < timers.rules.delay_max_ms:
            raise Rejected(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _key(self, handle: RecallHandle, timers: Timers) -> str:
        return recall_key(
            handle.topic, handle.message_id, with_topic=timers.settings.recalls_with_topic
        )

    def _draft(self, request: Request, handle: RecallHandle, timers: Timers) -> Draft:
        header: RecallMessageHeader = request.header
        properties = {
            TIMER_DELETE_KEY: self._key(handle, timers),
            UNIQ_KEY: handle.message_id,
            TAGS: TAG,
        }
        if header.producer_group:
            properties[PRODUCER_GROUP] = header.producer_group
        draft = Draft(
            handle.topic,
            0,
            b"0",
            joined_properties(properties).encode(),
            0,
            0,
            self.pipeline.clock_ms(),
            request.connection.peer_bytes,
            tags=TAG,
            unique_key=handle.message_id,
        )
        timers.delay(draft, handle.deliver_ms)
        return draft

    def metrics(self, _request: Request) -> Response:
        """Return how many messages of each topic wait."""
        timers = self.pipeline.timers
        body = timers.counts.body() if timers is not None else TimerMetrics()
        return Response(body=body.encode())


def _failed(cause: object) -> str:
    return f"recall failed, execute error ({cause})"
