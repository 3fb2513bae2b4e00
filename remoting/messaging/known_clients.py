"""Clients of the service, by the id that comes with each of their calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

import attrs
import trio

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import (
    ClientType,
    Code,
    FilterType,
    Settings,
)
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import TelemetryCommand
from triomq.remoting.grpc.methods import CallContext
from triomq.remoting.limits import Limits
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.messaging.call_credentials import call_credentials
from triomq.remoting.messaging.checks import group_name, topic_name
from triomq.remoting.messaging.cluster import BrokerLink
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.messaging.waiting_commands import WaitingCommands
from triomq.remoting.protocol.bodies.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    SQL92,
    TAG,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.codes import LanguageCode

logger = logging.getLogger(__name__)

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_ID_LENGTH_MAX = 255
CALL_CREDENTIALS: ContextVar[Mapping[str, str]] = ContextVar("CALL_CREDENTIALS")
"""Those of the call that a task serves; another call of the same client id may have others."""
TYPES = {FilterType.TAG: TAG, FilterType.SQL: SQL92}


@attrs.define(eq=False)
class KnownClient:
    """One client. ``peer``: the address of its first connection; ``seen``: Trio's clock."""

    client_id: str
    peer: tuple[str, int]
    language: int
    seen: float
    link: BrokerLink = attrs.field(init=False)
    settings: Settings | None = None
    commands: WaitingCommands | None = None
    """Those that its telemetry stream has not taken; None without a stream."""
    waiting: dict[str, Callable[[TelemetryCommand], None]] = attrs.field(factory=dict)
    """Those who wait for the client's answer to a command, by the command's nonce."""
    gone: bool = attrs.field(default=False, init=False)
    """Whether it was forgotten; calls of it may still be under way."""

    @property
    def producer_topics(self) -> list[str]:
        """The topics that the client sends to; each is a producer group as well."""
        if self.settings is None or not self.settings.HasField("publishing"):
            return []
        return [topic_name(topic) for topic in self.settings.publishing.topics]

    @property
    def consumer_group(self) -> str | None:
        if self.settings is None or not self.settings.HasField("subscription"):
            return None
        return group_name(self.settings.subscription.group)

    def heartbeat_data(self) -> HeartbeatData:
        """Return the client's groups and subscriptions for brokers."""
        group, settings = self.consumer_group, self.settings
        consumers = []
        if group is not None and settings is not None:
            simple = settings.client_type == ClientType.SIMPLE_CONSUMER
            consumers.append(
                ConsumerData(
                    group=group,
                    consume_type=CONSUME_ACTIVELY if simple else CONSUME_PASSIVELY,
                    subscriptions=[
                        SubscriptionData(
                            topic=topic_name(entry.topic),
                            sub_string=entry.expression.expression or "*",
                            expression_type=SQL92
                            if entry.expression.type == FilterType.SQL
                            else TAG,
                        )
                        for entry in settings.subscription.subscriptions
                    ],
                )
            )
        return HeartbeatData(
            client_id=self.client_id,
            producers=[ProducerData(topic) for topic in self.producer_topics],
            consumers=consumers,
        )

    def tell(self, command: TelemetryCommand) -> bool:
        """Send the client a command; return False if it cannot be told. Checkpoint: never."""
        return self.commands is not None and self.commands.put(command)

    async def ask(
        self, nonce: str, command: TelemetryCommand, timeout: float
    ) -> TelemetryCommand | None:
        """Send a command and return the client's answer; None without one in *timeout* seconds."""
        answers: list[TelemetryCommand] = []
        done = trio.Event()

        def answered(answer: TelemetryCommand) -> None:
            answers.append(answer)
            done.set()

        self.waiting[nonce] = answered
        try:
            if self.tell(command):
                with trio.move_on_after(timeout):
                    await done.wait()
        finally:
            del self.waiting[nonce]
        return answers[0] if answers else None


@attrs.define(eq=False)
class KnownClients:
    """The table. ``link``: makes the way of a new client to the brokers."""

    limits: Limits
    link: Callable[[KnownClient], BrokerLink]
    idle_seconds: float
    by_id: dict[str, KnownClient] = attrs.field(factory=dict, init=False)
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def of_call(self, call: CallContext) -> KnownClient:
        """Return the client of a call, a new one if it is not known. Raises: Refused."""
        client_id = call.metadata.get(CLIENT_ID, "").strip()
        if not client_id:
            raise Refused(
                Code.CLIENT_ID_REQUIRED,
                f"the call has no client id; send one in the header {CLIENT_ID}",
            )
        credentials = call_credentials(call.metadata)
        CALL_CREDENTIALS.set(credentials)
        found = self.by_id.get(client_id)
        if found is not None:
            found.seen = trio.current_time()
            found.link.credentials = credentials
            return found
        if len(client_id) > CLIENT_ID_LENGTH_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"the client id has {len(client_id)} characters; the limit is"
                f" {CLIENT_ID_LENGTH_MAX}",
            )
        if len(self.by_id) >= self.limits.most("clients_max"):
            self.limits.note("clients_max")
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                f"{len(self.by_id)} clients are known, the limit; raise"
                f" {self.limits.name('clients_max')}, or stop clients",
            )
        made = KnownClient(client_id, call.peer, language_code(call.metadata), trio.current_time())
        made.link = self.link(made)
        made.link.credentials = credentials
        self.by_id[client_id] = made
        return made

    def forget(self, client: KnownClient) -> None:
        """Remove a client that is gone. Checkpoint: never."""
        if self.by_id.get(client.client_id) is client:
            del self.by_id[client.client_id]
        client.gone = True
        client.link.close()

    def silent(self, now: float) -> Sequence[KnownClient]:
        """Return the clients without a stream that were not seen for long."""
        return [
            client
            for client in self.by_id.values()
            if client.commands is None and now - client.seen > self.idle_seconds
        ]


def language_code(metadata: Mapping[str, str]) -> int:
    """Return the language of a client in the remoting protocol; OTHER for an unknown one."""
    name = metadata.get(LANGUAGE, "").upper()
    known = LanguageCode.__members__.get(_LANGUAGES.get(name, name), LanguageCode.OTHER)
    return int(known)


_LANGUAGES = {"GOLANG": "GO", "NODEJS": "NODE_JS", "DOT_NET": "DOTNET", "CSHARP": "DOTNET"}
