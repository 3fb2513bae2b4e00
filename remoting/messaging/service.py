"""``apache.rocketmq.v2.MessagingService``: its table of methods, and the tasks behind it.

::

    GrpcMessaging.run ─┬ renewal            times of messages that push consumers hold
                          ├ clients-expire     clients that are gone without a word
                          └ × receive, give-back, answers to brokers

A handler raises Refused; the table makes a status of the answer of it. Source:
proxy/…/grpc/v2/GrpcMessagingApplication.java.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import attrs
import trio

from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.core.periodic import every
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.grpc.message_reader import Cost, all_bytes
from triomq.remoting.grpc.methods import (
    AnswerStream,
    CallContext,
    Method,
    MethodTable,
    bidirectional,
    server_streaming,
    unary,
)
from triomq.remoting.messaging.batched_acks import BatchedAcks
from triomq.remoting.messaging.batched_calls import BatchedSends, CallBatches, batch_of
from triomq.remoting.messaging.batched_changes import BatchedTimeChanges
from triomq.remoting.messaging.batched_questions import BatchedQuestions
from triomq.remoting.messaging.call_access import CallAccess
from triomq.remoting.messaging.client_settings import retry_delay_ms
from triomq.remoting.messaging.cluster import (
    BrokerLink,
    Cluster,
    DirectRequests,
    refused_by_network,
)
from triomq.remoting.messaging.known_clients import KnownClient, KnownClients
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.receiving import Receiving
from triomq.remoting.messaging.renewal import Renewals
from triomq.remoting.messaging.routing import Routing
from triomq.remoting.messaging.send_cost import send_cost
from triomq.remoting.messaging.sending import Sending
from triomq.remoting.messaging.settling import PatientClock, Settling
from triomq.remoting.messaging.status_codes import Refused, status
from triomq.remoting.messaging.telemetry import TelemetryStreams
from triomq.remoting.monitor.metrics import Family, by_label, family
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.limits import Limits

logger = logging.getLogger(__name__)

PATH = "/apache.rocketmq.v2.MessagingService/"
EXPIRY_SECONDS = 5.0


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return int(trio.current_time() * 1000)


@attrs.define(eq=False)
class GrpcMessaging:
    """The service in front of a cluster."""

    cluster: Cluster
    settings: MessagingSettings = attrs.field(factory=MessagingSettings)
    clock_ms: Callable[[], int] = _wall_clock_ms
    access: CallAccess | None = None
    """What may refuse calls; None where everybody may make them, or brokers decide."""
    direct: DirectRequests | None = None
    """The broker of this process, which serves calls in batches; None in front of others."""
    limits: Limits = attrs.field(init=False)
    clients: KnownClients = attrs.field(init=False)
    telemetry: TelemetryStreams = attrs.field(init=False)
    renewals: Renewals = attrs.field(init=False)
    started: trio.Event = attrs.field(factory=trio.Event, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.limits = Limits(self.settings, "gRPC service")
        self.clients = KnownClients(
            self.limits,
            self._link,
            self.settings.client_idle_ms / 1000,
            lambda: self.cluster.verifies_signatures,
        )
        self.telemetry = TelemetryStreams(
            self.cluster, self.clients, self.settings, self._spawn, self.access
        )
        self.renewals = Renewals(self.settings, self.limits, _steady_ms, self._retry_delay)

    async def run(
        self,
        scope: trio.CancelScope | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run what is behind the calls until cancelled; calls may come after ``started``.

        *scope*: ends it; a shielded one lets the calls of a stopping server end before.
        """
        with scope or trio.CancelScope():
            await self._run_tasks(task_status)

    async def _run_tasks(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                period = self.settings.renew_period_ms / 1000
                nursery.start_soon(every, period, self.renewals.renew_due, name="renewal")
                nursery.start_soon(every, EXPIRY_SECONDS, self._expire, name="clients-expire")
                self.started.set()
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                for client in list(self.clients.by_id.values()):
                    self.clients.forget(client)

    def table(self) -> MethodTable:
        """Return the methods for a GrpcServer."""
        routing = Routing(self.cluster, self.clients)
        sending = Sending(self.cluster, self.clients, self.clock_ms)
        patient = PatientClock(self.clock_ms, _steady_ms)
        settling = Settling(self.clients, self.renewals, patient)
        receiving = Receiving(
            self.cluster, self.clients, self.renewals, self.settings, self._spawn, self.clock_ms
        )
        answered = partial(_answered, self.access)
        sends = acks = changes = ends = recalls = None
        if self.direct is not None:
            sends = BatchedSends(self.direct, self.clients, sending, self.clock_ms)
            acks = BatchedAcks(self.direct, settling)
            changes = BatchedTimeChanges(self.direct, settling)
            questions = partial(BatchedQuestions, self.direct, self.clients)
            ends = questions(RequestCode.END_TRANSACTION)
            recalls = questions(RequestCode.RECALL_MESSAGE)
        return MethodTable(
            [
                answered("QueryRoute", routing.query_route),
                answered("QueryAssignment", routing.query_assignment),
                answered("Heartbeat", self.heartbeat),
                answered("NotifyClientTermination", self.client_termination),
                answered("SendMessage", sending.send, sends, send_cost),
                answered("EndTransaction", sending.end_transaction, ends),
                answered("RecallMessage", sending.recall, recalls),
                answered("AckMessage", settling.acknowledge, acks),
                answered("ChangeInvisibleDuration", settling.change_time, changes),
                answered("ForwardMessageToDeadLetterQueue", settling.to_dead_letters),
                server_streaming(
                    f"{PATH}ReceiveMessage",
                    pb.ReceiveMessageRequest.FromString,
                    pb.ReceiveMessageResponse.SerializeToString,
                    partial(_received, self.access, receiving.receive),
                ),
                bidirectional(
                    f"{PATH}Telemetry",
                    pb.TelemetryCommand.FromString,
                    pb.TelemetryCommand.SerializeToString,
                    self.telemetry.telemetry,
                ),
            ]
        )

    def figures(self) -> Iterator[Family]:
        """Yield the metrics of the service."""
        yield family("triomq_grpc_clients", len(self.clients.by_id))
        yield family("triomq_grpc_held_messages", len(self.renewals.held))
        yield family("triomq_grpc_stranger_calls_total", self.clients.strangers)
        yield family("triomq_grpc_service_refused_total", by_label("limit", self.limits.refused))

    # Clients that come and go

    async def heartbeat(
        self, request: pb.HeartbeatRequest, call: CallContext
    ) -> pb.HeartbeatResponse:
        """Note that a client is alive. Raises: Refused."""
        client = self.clients.of_call(call)
        self._require_settings(client)
        self.clients.require_owner(client, call)
        await self.telemetry.register(client)
        return pb.HeartbeatResponse(status=status())

    async def client_termination(
        self, request: pb.NotifyClientTerminationRequest, call: CallContext
    ) -> pb.NotifyClientTerminationResponse:
        """Forget a client that ends, and give back what it holds. Raises: Refused."""
        client = self.clients.of_call(call)
        self._require_settings(client)
        self.clients.require_owner(client, call)
        if client.peer[0] != call.peer[0]:  # only the signature says who calls: it is verified now
            await self._unregister(client)
        await self._leave(client)
        return pb.NotifyClientTerminationResponse(status=status())

    def _require_settings(self, client: KnownClient) -> None:
        if client.settings is None:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "the client has sent no settings yet; send them on the Telemetry stream first",
            )

    async def _leave(self, client: KnownClient) -> None:
        await self.renewals.release(client)
        try:
            await self._unregister(client)
        except RemotingError as error:
            logger.debug("client %s is not unregistered: %s", client.client_id, error)
        self.clients.forget(client)

    async def _unregister(self, client: KnownClient) -> None:
        """Let brokers forget a client. Raises: Refused, RemotingError."""
        group = client.consumer_group
        await client.link.unregister(
            client.client_id, client.producer_topics, [group] if group is not None else []
        )

    async def _expire(self) -> None:
        for client in self.clients.silent(trio.current_time()):
            logger.info("client %s is gone: it was silent for long", client.client_id)
            await self._leave(client)

    # What the parts need

    def _link(self, client: KnownClient) -> BrokerLink:
        return self.cluster.link(
            client.peer, partial(self.telemetry.take_request, client), self._spawn
        )

    async def _retry_delay(self, group: str, reconsume_times: int) -> int:
        return retry_delay_ms(await self.cluster.group(group), reconsume_times)

    def _spawn(self, run: Callable[..., Awaitable[None]], *arguments: object, name: str) -> None:
        if self._nursery is None:
            raise Refused(Code.INTERNAL_SERVER_ERROR, "the server stops; use another one")
        self._nursery.start_soon(run, *arguments, name=name)


async def answer_to_broker(command: Command, answering: Awaitable[Command]) -> Command:
    """Return the answer to a broker's request, a refusal included."""
    try:
        return await answering
    except Rejected as error:
        return response_to(command, error.code, remark=error.remark)
    except RemotingError as error:
        return response_to(command, ResponseCode.SYSTEM_ERROR, remark=str(error))


async def _received(
    access: CallAccess | None,
    receive: Callable[[Any, Any, CallContext], Awaitable[None]],
    request: pb.ReceiveMessageRequest,
    answers: AnswerStream[pb.ReceiveMessageResponse],
    call: CallContext,
) -> None:
    if access is not None:
        try:
            access.require("ReceiveMessage", request, call)
        except Refused as error:
            await answers.send(pb.ReceiveMessageResponse(status=error.status()))
            return
    await receive(request, answers, call)


def _answered(
    access: CallAccess | None,
    name: str,
    handler: Callable[[Any, CallContext], Awaitable[Any]],
    batch: CallBatches | None = None,
    cost: Cost = all_bytes,
) -> Method:
    """Return the line of a unary method; a refusal becomes the status of its answer."""
    request: Any = getattr(pb, f"{name}Request")
    response: Any = getattr(pb, f"{name}Response")

    async def handle(asked: object, call: CallContext) -> Any:
        try:
            if access is not None:
                access.require(name, asked, call)
            return await handler(asked, call)
        except RemotingError as error:
            refused = refused_by_network(error)
            return response(status=refused.status())

    def encode(answer: Any) -> bytes:
        return answer if type(answer) is bytes else answer.SerializeToString()

    path, decode = PATH + name, request.FromString
    if batch is None:
        return unary(path, decode, encode, handle, cost=cost)
    run = batch_of(access, name, response, batch)
    return unary(path, decode, encode, handle, batch.takes, run, cost)
