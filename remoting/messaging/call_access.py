"""What each call of the gRPC service needs, and the check before its handler.

Names come from the call itself, by the functions that the handlers use. The requests that a call
becomes are not checked again: a receipt handle names retry topics, of which users know nothing.
Source: proxy/…/grpc/pipeline/AuthorizationPipeline.java,
auth/…/authorization/builder/DefaultAuthorizationContextBuilder.java.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from triomq.remoting.access.resources import Action, Need, group_need, topic_need
from triomq.remoting.audit.decision_notes import NO_CODE, Asked, DecisionNotes
from triomq.remoting.core.errors import Rejected
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as service
from triomq.remoting.grpc.methods import CallContext
from triomq.remoting.messaging.call_credentials import call_credentials
from triomq.remoting.messaging.checks import group_name, topic_name
from triomq.remoting.messaging.status_codes import refused_by_broker
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.signing import DATE_TIME

PUB, SUB = Action.PUB, Action.SUB


def _topic(resource: pb.Resource, *actions: Action) -> Need:
    return topic_need(topic_name(resource, system_allowed=True), *actions)


def _group(resource: pb.Resource) -> Need:
    return group_need(group_name(resource), SUB)


def _member(
    request: service.QueryAssignmentRequest | service.ReceiveMessageRequest,
) -> Iterable[Need]:
    return _group(request.group), _topic(request.topic, SUB)


def _of_group(
    request: service.HeartbeatRequest | service.NotifyClientTerminationRequest,
) -> Iterable[Need]:
    """A producer names no group: its signature is enough."""
    return [_group(request.group)] if request.group.name else []


def _settings(command: service.TelemetryCommand) -> Iterable[Need]:
    if command.WhichOneof("command") != "settings":
        return
    settings = command.settings
    yield from (_topic(topic, PUB) for topic in settings.publishing.topics)
    if settings.HasField("subscription"):
        yield _group(settings.subscription.group)
        yield from (_topic(each.topic, SUB) for each in settings.subscription.subscriptions)


CALL_NEEDS: Mapping[str, Callable[[Any], Iterable[Need]]] = {
    "QueryRoute": lambda request: [_topic(request.topic, PUB, SUB)],
    "QueryAssignment": _member,
    "Heartbeat": _of_group,
    "NotifyClientTermination": _of_group,
    "SendMessage": lambda request: [_topic(message.topic, PUB) for message in request.messages],
    "EndTransaction": lambda request: [_topic(request.topic, PUB)],
    "RecallMessage": lambda request: [_topic(request.topic, PUB)],
    "ReceiveMessage": lambda request: [
        _group(request.group),
        _topic(request.message_queue.topic, SUB),
    ],
    "AckMessage": _member,
    "ChangeInvisibleDuration": lambda request: [_group(request.group)],
    "ForwardMessageToDeadLetterQueue": _member,
    "Telemetry": _settings,
}
"""Method -> what a request of it needs."""


@attrs.frozen(eq=False)
class CallAccess:
    """The check."""

    notes: DecisionNotes
    clock: Callable[[], float] = lambda: time.time()
    spend: Callable[[str, str, object, CallContext], None] | None = None
    """Takes what an allowed call uses from the quota of its user: called with user, method, request
    and call. Raises: Rejected.
    """

    def require(self, name: str, request: object, call: CallContext) -> None:
        """Refuse a call that its sender may not make, or not now. Raises: Refused."""
        notes, control, user = self.notes, self.notes.control, None
        fields = call_credentials(call.metadata)
        try:
            user = control.identify(NO_CODE, fields, address=call.peer[0], by_date=True)
            if user is not None and not user.trusted_by:
                # A stream is signed when it begins, and asks again and again.
                control.require_recent(fields[DATE_TIME], self.clock() - call.age())
            control.require(user, CALL_NEEDS[name](request), call.peer[0])
        except Rejected as error:
            needs = () if user is None else tuple(CALL_NEEDS[name](request))
            notes.refused(Asked("grpc", name, call.peer), error, user, fields, needs)
            # One code for both versions of access control: ACL 1.0 has that of a broken server.
            raise refused_by_broker(ResponseCode.NO_PERMISSION, error.remark) from None
        if notes.wants():
            needs = tuple(CALL_NEEDS[name](request))
            notes.allowed(Asked("grpc", name, call.peer), user, needs)
        if user is not None and self.spend is not None:
            try:
                self.spend(user.name, name, request, call)
            except Rejected as error:
                raise refused_by_broker(error.code, error.remark) from None
