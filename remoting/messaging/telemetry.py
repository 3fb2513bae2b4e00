"""The Telemetry stream of a client: its settings, and the commands of brokers to it.

The stream lives as long as the client. Each settings command is answered with the same settings and
what the server adds to them. A broker's request to a client becomes a command on the stream.
Source: proxy/…/grpc/v2/client/ClientActivity.java, GrpcClientChannel.java.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import attrs
import trio

from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code, Message, Settings
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    PrintThreadStackTraceCommand,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    VerifyMessageCommand,
)
from triomq.remoting.grpc.methods import AnswerStream, CallContext, RequestStream
from triomq.remoting.grpc.status import CallFailed, GrpcStatus
from triomq.remoting.messaging.call_access import CallAccess
from triomq.remoting.messaging.client_settings import merged_settings
from triomq.remoting.messaging.cluster import Cluster
from triomq.remoting.messaging.delivered_message import delivered_message
from triomq.remoting.messaging.known_clients import KnownClient, KnownClients
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.status_codes import Refused, status
from triomq.remoting.messaging.transaction_place import TransactionPlace
from triomq.remoting.messaging.unpacking import off_the_loop
from triomq.remoting.messaging.waiting_commands import WaitingCommands
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.client import ConsumeDirectlyHeader, ConsumerRunningHeader
from triomq.remoting.protocol.headers.transaction import CheckTransactionHeader
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long a client may take to answer a command of a broker."""
TOPICS_MAX = 3_000
"""Topics of one client: what brokers are told of them takes 15 ms, at each heartbeat."""
UNANSWERED_MAX = 16
"""Commands that one client has not answered; further requests of brokers are refused."""
_RESULTS = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


@attrs.define(eq=False)
class TelemetryStreams:
    """The call, and the way of brokers' requests to clients. ``spawn`` starts a task that outlives
    the call.
    """

    cluster: Cluster
    clients: KnownClients
    settings: MessagingSettings
    spawn: Callable[..., None]
    access: CallAccess | None = None
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    # The call

    async def telemetry(
        self,
        requests: RequestStream[TelemetryCommand],
        answers: AnswerStream[TelemetryCommand],
        call: CallContext,
    ) -> None:
        """Serve the stream of a client until it half-closes, or the server stops."""
        try:
            client = self.clients.of_call(call)
            if client.commands is not None:
                self.clients.require_owner(client, call)
        except Refused as error:
            await answers.send(TelemetryCommand(status=status(error.code, error.message)))
            return
        self.clients.take_over(client, call)
        commands = WaitingCommands()
        client.commands = commands  # the newest stream is the one that the client reads
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_answers, commands, answers, name="telemetry-write")
                nursery.start_soon(self._end_when_draining, call, nursery.cancel_scope)
                await self._read_commands(requests, commands, call)
                nursery.cancel_scope.cancel()
        finally:
            client = self.clients.by_id.get(client.client_id, client)
            client.seen = trio.current_time()
            if client.commands is commands:
                client.commands = None

    async def _end_when_draining(self, call: CallContext, stream: trio.CancelScope) -> None:
        await call.draining.wait()
        stream.cancel()

    async def _write_answers(
        self, commands: WaitingCommands, answers: AnswerStream[TelemetryCommand]
    ) -> None:
        while True:
            await answers.send(await commands.take())

    async def _read_commands(
        self,
        requests: RequestStream[TelemetryCommand],
        commands: WaitingCommands,
        call: CallContext,
    ) -> None:
        async for command in requests:
            kind = command.WhichOneof("command")
            try:
                # Another one of the same id may have ended, and the client been forgotten.
                client = self.clients.of_call(call)
                if client.commands is None:
                    self.clients.take_over(client, call)
                    client.commands = commands
                elif client.commands is not commands:
                    self.clients.require_owner(client, call)
                if kind == "settings":
                    if self.access is not None:
                        self.access.require("Telemetry", command, call)
                    merged = await self.take_settings(client, command.settings)
                    answer = TelemetryCommand(status=status(), settings=merged)
                    await commands.put_alone(answer)
            except Refused as error:
                if error.code == Code.UNAUTHORIZED:  # the stream goes on, as at Java's proxy
                    refusal = status(error.code, error.message)
                    await commands.put_alone(TelemetryCommand(status=refusal))
                    continue
                raise CallFailed(_grpc_status(error.code), error.message) from None
            if kind in ("thread_stack_trace", "verify_message_result"):
                answered = client.waiting.get(getattr(command, kind).nonce)
                if answered is not None:
                    answered(command)

    async def take_settings(self, client: KnownClient, settings: Settings) -> Settings:
        """Remember a client's settings, register it, and return them with the server's.

        Raises: Refused.
        """
        if settings.WhichOneof("pub_sub") is None:
            raise Refused(
                Code.BAD_REQUEST,
                "the settings have neither publishing nor subscription; send one of the two",
            )
        topics = max(len(settings.publishing.topics), len(settings.subscription.subscriptions))
        if topics > TOPICS_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"the settings name {topics} topics; the limit is {TOPICS_MAX}: use several"
                " clients",
            )
        known = KnownClient(client.client_id, client.peer, client.language, client.seen)
        known.settings = settings
        known.heartbeat_data()  # raises for an illegal name, before anything changes
        await trio.lowlevel.checkpoint()
        group = known.consumer_group
        config = None if group is None else await self.cluster.group(group)
        client.settings = merged_settings(settings, config, self.settings)
        await self.register(client)
        return client.settings

    async def register(self, client: KnownClient) -> None:
        """Let the brokers know the groups of a client.

        A broker that cannot be reached hears of it with the next heartbeat.
        """
        try:
            await client.link.register(client.heartbeat_data(), client.language)
        except RemotingError as error:
            self.limit.warning(
                logger,
                "client %s could not be registered; its next heartbeat tries again: %s",
                client.client_id,
                error,
            )

    # Requests of brokers

    def take_request(
        self, client: KnownClient, command: Command
    ) -> Coroutine[object, object, Command] | None:
        """Pass a broker's request to a client; return what waits for an answer that it needs."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            if client.commands is None:
                self._not_reached(client)
            else:
                self.spawn(self._check_transaction, client, command, name="transaction-check")
        elif command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running(client, command)
        elif command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._consume_directly(client, command)
        elif not command.is_oneway:
            return _unsupported(command)
        return None

    async def _check_transaction(self, client: KnownClient, command: Command) -> None:
        header = command.header(CheckTransactionHeader)
        (half,) = decode_records(bytes(command.body))
        place = TransactionPlace(
            header.broker_name or "",
            header.half_queue_offset,
            header.log_offset,
            header.transaction_id or half.message_id,
        )
        asked = RecoverOrphanedTransactionCommand(
            message=await _delivered(half, half.properties.get("REAL_TOPIC") or half.topic),
            transaction_id=place.encode(),
        )
        if not client.tell(TelemetryCommand(recover_orphaned_transaction_command=asked)):
            self._not_reached(client)

    def _not_reached(self, client: KnownClient) -> None:
        self.limit.info(
            logger,
            "the check of a transaction did not reach client %s, which has no telemetry stream or"
            " does not read it; the broker checks again",
            client.client_id,
        )

    async def _running(self, client: KnownClient, command: Command) -> Command:
        header = command.header(ConsumerRunningHeader)
        jstack = None
        if header.jstack:
            answer = await self._ask_client(
                client,
                lambda nonce: TelemetryCommand(
                    print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce)
                ),
            )
            jstack = answer.thread_stack_trace.thread_stack_trace
        running = ConsumerRunning(
            properties={"PROP_CONSUME_TYPE": client.heartbeat_data().consumers[0].consume_type}
            if client.consumer_group is not None
            else {},
            subscriptions=[
                subscription
                for consumer in client.heartbeat_data().consumers
                for subscription in consumer.subscriptions
            ],
            jstack=jstack,
        )
        return response_to(command, body=running.encode())

    async def _consume_directly(self, client: KnownClient, command: Command) -> Command:
        command.header(ConsumeDirectlyHeader)
        message: StoredMessage
        (message,) = decode_records(bytes(command.body))
        delivered = await _delivered(message, message.topic)
        begun = trio.current_time()
        answer = await self._ask_client(
            client,
            lambda nonce: TelemetryCommand(
                verify_message_command=VerifyMessageCommand(nonce=nonce, message=delivered)
            ),
        )
        result = ConsumeDirectlyResult(
            consume_result=_RESULTS.get(answer.status.code, "CR_THROW_EXCEPTION"),
            remark=answer.status.message or None,
            spent_ms=round((trio.current_time() - begun) * 1000),
        )
        return response_to(command, body=result.encode())

    async def _ask_client(self, client: KnownClient, make: Any) -> TelemetryCommand:
        """Return the client's answer to a command. Raises: Rejected."""
        if len(client.waiting) >= UNANSWERED_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"client {client.client_id} has {len(client.waiting)} commands to answer",
            )
        nonce = str(uuid.uuid4())
        answer = await client.ask(nonce, make(nonce), ANSWER_SECONDS)
        if answer is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"client {client.client_id} did not answer in {ANSWER_SECONDS:g} s; check that it"
                " runs",
            )
        return answer


async def _delivered(message: StoredMessage, topic: str) -> Message:
    """Return a message that a client is asked about, without a handle."""
    make = partial(delivered_message, message, topic=topic, handle="", invisible_ms=None)
    return await off_the_loop(make, [message])


async def _unsupported(command: Command) -> Command:
    return response_to(
        command,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"request {command.code} is not for clients that speak gRPC",
    )


def _grpc_status(code: int) -> GrpcStatus:
    """Return how a stream ends because of a bad command."""
    if 40000 <= code < 50000:
        return GrpcStatus.INVALID_ARGUMENT
    return GrpcStatus.INTERNAL
