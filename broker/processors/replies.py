"""Replies to request messages: SEND_REPLY_MESSAGE (324, 325), pushed to the requester (326).

The reply is sent like a message and names the requester's client id. This broker finds the
connection that the requester opened as a producer, pushes the reply over it, and answers the sender
when the requester has answered. The reply is also stored (storeReplyMessageEnable), for people who
look for it; the outcome of that does not change the answer, as in Java. Source:
broker/processor/ReplyMessageProcessor.java.
"""

from __future__ import annotations

import logging
import random

import attrs

from triomq.broker.processors.send import known_properties as props
from triomq.broker.processors.send.admission import Target
from triomq.broker.processors.send.drafts import REPLACED
from triomq.broker.processors.send.pipeline import NOT_PLAIN_FLAGS, SendPipeline
from triomq.broker.services.groups import GroupTable
from triomq.broker.services.pushed_replies import PushedReplies
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import IllegalMessage, StoreUnavailable
from triomq.remoting.core.errors import ConnectionLost, Rejected
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.send import (
    ReplyMessageHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)
from triomq.remoting.protocol.message_properties import (
    DELAY,
    INNER_NUM,
    KEYS,
    MSG_REGION,
    MULTI_DISPATCH,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TAGS,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    parse_properties,
)
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Deferred, Request, Response

logger = logging.getLogger(__name__)

NOT_KEPT = (*REPLACED, PUSH_REPLY_TIME, WAIT, DELAY, TRAN_MSG, INNER_NUM, MULTI_DISPATCH)
"""Properties that would make more of a reply than a message that is pushed and stored."""


@attrs.define(eq=False)
class Replies:
    """The handler of both codes."""

    pipeline: SendPipeline
    clients: GroupTable[Connection]
    pushed: PushedReplies[Connection]
    broker_address: str
    stored: bool
    """storeReplyMessageEnable"""
    limit: LogLimit = attrs.field(factory=LogLimit)

    def handle(self, request: Request) -> Response | Deferred:
        """Push a reply, store it, and answer when the requester has answered.

        Checkpoint: never.
        """
        try:
            return self._handle(request)
        except Rejected as refusal:
            return self.pipeline.refusal(refusal.code, refusal.remark)

    def _handle(self, request: Request) -> Response | Deferred:
        """Check, store and push. Raises: Rejected."""
        pipeline = self.pipeline
        header: SendMessageHeader = request.header
        closed = pipeline.admission.closed_until(pipeline.clock_ms())
        if closed is not None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, closed)
        if pipeline.admission.generation != pipeline.topics.generation:
            pipeline.admission.forget_targets()
        target = pipeline.admission.find(header, request.connection.peer_text)
        if header.batch or header.sys_flag & NOT_PLAIN_FLAGS:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                "a reply is one plain message, not a batch or a half of a transaction; send it as"
                f" such (sysFlag {header.sys_flag:#x})",
            )
        if header.queue_id < 0:
            header.queue_id = random.randrange(max(1, target.write_queues))
        config = pipeline.config
        text = props.rewritten(
            header.properties or "",
            NOT_KEPT,
            {MSG_REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false"},
        )
        known = parse_properties(text)
        client_id = known.get(REPLY_TO_CLIENT)
        connection = self.clients.producer_connection(client_id) if client_id is not None else None
        if client_id is None:
            self.pushed.outcomes["not_a_reply"] += 1
            remark = f"reply message properties[{REPLY_TO_CLIENT}] is null"
        elif connection is None:
            self.pushed.outcomes["not_connected"] += 1
            remark = f"push reply message fail, channel of <{client_id}> not found."
        else:
            self.pushed.require_room(connection, client_id)
            place = self._store(request, target, text, known)
            return self._push(request, connection, client_id, text, place)
        return self._response(header, self._store(request, target, text, known), remark)

    def _store(
        self, request: Request, target: Target, text: str, known: dict[str, str]
    ) -> Appended | None:
        """Store the reply; return its place, None if it is not stored. Checkpoint: never."""
        if not self.stored:
            return None
        header: SendMessageHeader = request.header
        draft = Draft(
            target.topic,
            header.queue_id,
            request.body,
            text.encode("utf-8", "replace"),
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            request.connection.peer_bytes,
            header.reconsume_times or 0,
            tags=known.get(TAGS),
            unique_key=known.get(UNIQ_KEY),
            keys=known.get(KEYS),
        )
        draft.special = target.batched
        try:
            if reason := self.pipeline.durability.refusal():
                raise StoreUnavailable(reason)
            self.pipeline.store.check_draft(draft)
            return self.pipeline.append_copies([draft], target)[0]
        except (IllegalMessage, StoreUnavailable) as error:
            self.limit.warning(
                logger,
                "a reply of %s to %s is pushed, but not stored: %s",
                request.connection.peer_text,
                known.get(REPLY_TO_CLIENT),
                error,
            )
            return None

    def _push(
        self,
        request: Request,
        connection: Connection,
        client_id: str,
        text: str,
        place: Appended | None,
    ) -> Deferred:
        """Push the reply; the response to its sender comes when the push has ended."""
        header: SendMessageHeader = request.header
        deferred = Deferred((request,))
        numbers: list[int] = []

        def finish(outcome: str, remark: str | None) -> None:
            if self.pushed.end(push, outcome):
                deferred.finish(lambda: self._response(header, place, remark))

        def answered(answer: Command | None) -> None:
            if answer is None:
                finish("lost", f"push reply message to {client_id}fail.")
            elif answer.code == ResponseCode.SUCCESS:
                finish("delivered", None)
            else:
                finish("refused", f"push reply message to {client_id}fail.")

        def expire() -> None:
            for number in numbers:
                connection.give_up(number)
            finish("unanswered", f"push reply message to {client_id}fail.")

        push = self.pushed.begin(connection, expire)
        command = self._command(request, text)
        request.body = b""  # it may wait for seconds, and its bytes are sent
        try:
            numbers.append(connection.ask(command, push.deadline, answered))
        except ConnectionLost:
            answered(None)
        return deferred

    def _command(self, request: Request, text: str) -> Command:
        header: SendMessageHeader = request.header
        now_ms = self.pipeline.clock_ms()
        return new_request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            ReplyMessageHeader(
                producer_group=header.producer_group,
                topic=header.topic,
                default_topic=header.default_topic,
                default_topic_queue_count=header.default_topic_queue_count,
                queue_id=header.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                born_host=request.connection.peer_text,
                store_host=self.broker_address,
                store_timestamp=now_ms,
                properties=f"{text}{PUSH_REPLY_TIME}\x01{now_ms}\x02",
                reconsume_times=header.reconsume_times or 0,
                unit_mode=bool(header.unit_mode),
            ),
            request.body,
        )

    def _response(
        self, header: SendMessageHeader, place: Appended | None, remark: str | None
    ) -> Response:
        """Return the response to the sender of a reply; ``remark``: why it was not delivered."""
        config = self.pipeline.config
        if remark is not None and place is None:
            return self.pipeline.refusal(ResponseCode.SYSTEM_ERROR, remark)
        return Response(
            ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR,
            SendMessageResponseHeader(
                "0" if place is None else self._message_id(place),
                header.queue_id,
                0 if place is None else place.queue_offset,
                None,
                config.region_id,
                config.trace_on,
            ),
            remark=remark,
        )

    def _message_id(self, place: Appended) -> str:
        return f"{self.pipeline.store.config.store_host.hex().upper()}{place.log_offset:016X}"
