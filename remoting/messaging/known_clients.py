"""Clients of the service, by the id that comes with each of their calls.

Anyone may send any id. A client belongs to the connection of its Telemetry stream, or of its first
call before there is a stream: calls from that address, and signed calls of the same user where
signatures are verified, may change it. Calls from elsewhere are served, but change nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

import attrs
import trio

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import (
    ClientType,
    Code,
    FilterType,
    Settings,
)
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import TelemetryCommand
from triomq.remoting.grpc.methods import CallContext
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
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.signing import ACCESS_KEY

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_ID_LENGTH_MAX = 255
CALL_CREDENTIALS: ContextVar[Mapping[str, str]] = ContextVar("CALL_CREDENTIALS")
"""Those of the call that a task serves; another call of the same client id may have others."""
CALL_PEER: ContextVar[tuple[str, int]] = ContextVar("CALL_PEER")
"""The address of the call that a task serves."""
SEEN_SECONDS, SEEN_SECONDS_WITHOUT_STREAM = 40.0, 15.0
"""How long a living client may make no call: official clients send a heartbeat every 10 s (that of
Rust 30 s), and open another stream as soon as one has broken.
"""


@attrs.define(eq=False)
class KnownClient:
    """One client. ``peer``: the connection that it belongs to; ``seen``: Trio's clock."""

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
    access_key: str = ""
    """That of the call that made it, unverified; empty without one."""
    gone: bool = attrs.field(default=False, init=False)
    """Whether it was forgotten; calls of it may still be under way."""

    def lives(self, now: float) -> bool:
        """Return whether the client was heard as lately as one that runs. Checkpoint: never."""
        streams = self.commands is not None
        return now - self.seen <= (SEEN_SECONDS if streams else SEEN_SECONDS_WITHOUT_STREAM)

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
    """The table. ``link``: makes the way of a new client to the brokers.

    ``verified``: whether the brokers verify signatures, so that an access key says who calls.
    """

    limits: Limits
    link: Callable[[KnownClient], BrokerLink]
    idle_seconds: float
    verified: Callable[[], bool] = lambda: False
    by_id: dict[str, KnownClient] = attrs.field(factory=dict, init=False)
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    strangers: int = attrs.field(default=0, init=False)
    """Calls that were refused because their client belongs to another address."""
    _by_connection: Counter[tuple[str, int]] = attrs.field(factory=Counter, init=False)
    _by_address: Counter[str] = attrs.field(factory=Counter, init=False)

    def of_call(self, call: CallContext) -> KnownClient:
        """Return the client of the call that this task serves, a new one if it is not known.

        Requests of the task have the credentials and the address of the call. Raises: Refused.
        """
        CALL_CREDENTIALS.set(call_credentials(call.metadata))
        CALL_PEER.set(call.peer)
        return self.find(call)

    def find(self, call: CallContext) -> KnownClient:
        """Return the client of a call without a task of its own. Raises: Refused."""
        client_id = call.metadata.get(CLIENT_ID, "").strip()
        if not client_id:
            raise Refused(
                Code.CLIENT_ID_REQUIRED,
                f"the call has no client id; send one in the header {CLIENT_ID}",
            )
        credentials = call_credentials(call.metadata)
        found = self.by_id.get(client_id)
        if found is not None:
            found.seen = trio.current_time()
            if found.peer[0] == call.peer[0]:
                found.link.credentials = credentials
            return found
        if len(client_id) > CLIENT_ID_LENGTH_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"the client id has {len(client_id)} characters; the limit is"
                f" {CLIENT_ID_LENGTH_MAX}",
            )
        self._require_room(call.peer)
        made = KnownClient(client_id, call.peer, language_code(call.metadata), trio.current_time())
        made.access_key = credentials.get(ACCESS_KEY, "")
        made.link = self.link(made)
        made.link.credentials = credentials
        self.by_id[client_id] = made
        self._count(call.peer, 1)
        return made

    def owns(self, client: KnownClient, call: CallContext) -> bool:
        """Return whether a call comes from where its client belongs. Checkpoint: never.

        The address counts, not the port: a client connects again after a connection was lost.
        """
        if client.peer[0] == call.peer[0]:
            return True
        key = call_credentials(call.metadata).get(ACCESS_KEY, "")
        return bool(key) and key == client.access_key and self.verified()

    def require_owner(self, client: KnownClient, call: CallContext) -> None:
        """Refuse a call that may not change its client. Raises: Refused."""
        if not self.owns(client, call):
            self.strangers += 1
            raise Refused(
                Code.FORBIDDEN,
                f"the client id {client.client_id} belongs to a client at another address; use an"
                " id of your own, which no other client has",
            )

    def take_over(self, client: KnownClient, call: CallContext) -> None:
        """Let a client belong to the connection of its newest stream. Checkpoint: never."""
        if client.peer != call.peer and self.by_id.get(client.client_id) is client:
            self._count(client.peer, -1)
            self._count(call.peer, 1)
        credentials = call_credentials(call.metadata)
        client.peer = client.link.peer = call.peer
        client.link.credentials = credentials
        client.access_key = credentials.get(ACCESS_KEY, "")

    def _require_room(self, peer: tuple[str, int]) -> None:
        """Refuse a client that would be one too many. Raises: Refused."""
        for limit, count, where in (
            ("clients_max", len(self.by_id), "are known"),
            ("clients_per_address_max", self._by_address[peer[0]], "of this address are known"),
            (
                "clients_per_connection_max",
                self._by_connection[peer],
                "of this connection are known",
            ),
        ):
            if count >= self.limits.most(limit):
                self.limits.note(limit)
                raise Refused(
                    Code.TOO_MANY_REQUESTS,
                    f"{count} clients {where}, the limit; raise {self.limits.name(limit)}, or stop"
                    " clients",
                )

    def _count(self, peer: tuple[str, int], change: int) -> None:
        self._by_connection[peer] += change
        self._by_address[peer[0]] += change
        if not self._by_connection[peer]:
            del self._by_connection[peer]
        if not self._by_address[peer[0]]:
            del self._by_address[peer[0]]

    def forget(self, client: KnownClient) -> None:
        """Remove a client that is gone. Checkpoint: never."""
        if self.by_id.get(client.client_id) is client:
            del self.by_id[client.client_id]
            self._count(client.peer, -1)
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
