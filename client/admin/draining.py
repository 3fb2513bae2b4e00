"""Take a broker out for maintenance: stop its writes so that it lasts, and look what is unread.

Name servers keep a wiped permission only until the broker registers changed topics, or starts
again. The broker's setting ``brokerPermission`` is in every registration, and brokers (ours and
Java's) save it, so a drain changes the setting, and wipes for clients that ask before the broker
has registered. The earlier value is in the name servers' key-value table, which is on disk.

A broker without the permission still takes messages of ordinary topics from producers that have an
old route (Java's does, too), so a drain is done ``ROUTE_SECONDS`` after it began, or at once if no
producer is connected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import Answers, read_body, read_header
from triomq.client.admin.controllers import groups_at, leader_of
from triomq.client.admin.times import now_ms
from triomq.client.core.errors import BrokerError, ProtocolBroken, TrioMQError
from triomq.remoting.core.properties_file import (
    PropertiesError,
    format_properties,
    parse_properties,
)
from triomq.remoting.protocol.bodies.controller import GroupReplicas, ReplicaState
from triomq.remoting.protocol.bodies.groups import ProducerTable
from triomq.remoting.protocol.bodies.offsets import BrokerConsumeStats
from triomq.remoting.protocol.bodies.route import PERM_WRITE
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.admin import BrokerConsumeStatsHeader
from triomq.remoting.protocol.headers.controller import ElectMasterHeader
from triomq.remoting.protocol.headers.registration import (
    BrokerNameHeader,
    GetKvConfigResponseHeader,
    KvConfigHeader,
    PutKvConfigHeader,
    WipeWritePermResponseHeader,
)
from triomq.remoting.protocol.names import is_system_group

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.broker_address import BrokerAddress

NAMESPACE = "TRIOMQ_DRAIN"
"""of the name servers' key-value table: broker name → ``Drained.text``"""
SETTING = "brokerPermission"
ROUTE_SECONDS = 30.0
"""after which clients have asked for routes again: RocketMQ's pollNameServerInterval, and ours"""


@attrs.frozen
class Drained:
    """What name servers keep of a drained broker."""

    before: int
    """its permission before"""
    since_ms: int
    """when the drain began, by the clock of the machine that called it"""

    @property
    def text(self) -> str:
        """Return the value of the table: ``6 1795514400000``."""
        return f"{self.before} {self.since_ms}"

    def route_seconds_left(self, now_ms: int) -> float:
        """Return how long producers may have an old route."""
        return min(max(ROUTE_SECONDS - (now_ms - self.since_ms) / 1000, 0.0), ROUTE_SECONDS)


def drained_of(text: str | None) -> Drained | None:
    """Return what a value of the table says, None for other texts."""
    parts = (text or "").split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return None
    return Drained(int(parts[0]), int(parts[1]))


@attrs.frozen
class Unread:
    """What one group has not read on a broker."""

    group: str
    lag: int
    queues: int
    """number of queues with messages that it has not read"""


@attrs.frozen
class Hindrance:
    """What still keeps a broker from being stopped."""

    unread: Sequence[Unread]
    producer_seconds: int
    """how long producers may still send to it"""

    def __bool__(self) -> bool:
        return bool(self.unread or self.producer_seconds)


async def hindrance_of(
    admin: Admin, address: str, drained: Drained, ignored: Collection[str] = ()
) -> Hindrance:
    """Return what keeps a drained broker from being stopped. Raises: TrioMQError."""
    left = math.ceil(drained.route_seconds_left(now_ms()))
    if left and not await has_producers(admin, address):
        left = 0
    # Afterwards: what producers sent in the meantime is counted.
    return Hindrance(await unread(admin, address, ignored), left)


async def takes_all(admin: Admin, broker: BrokerAddress) -> bool:
    """Return whether no other broker of the cluster takes messages."""
    others = {one.name for one in await admin.brokers(broker.cluster, masters_only=True)}

    async def is_open(name: str) -> bool:
        return await stored_drain(admin, name) is None

    open_ones = await admin.for_each(others - {broker.name}, is_open)
    return not any(open_ones.values.values()) and not open_ones.failures


async def elect(
    admin: Admin, broker: BrokerAddress, controllers: Sequence[str], address: str | None = None
) -> tuple[str, GroupReplicas, ReplicaState]:
    """Make another living member of the sync state set the master; ``address``: that one.

    Returns: the controller that leads, the group before, and the new master.
    Raises: TrioMQError if that member, or any other one, is not alive in the set.
    """
    leader = await leader_of(admin, controllers)
    group = (await groups_at(admin, leader, [broker.name])).get(broker.name) or GroupReplicas()
    for chosen in group.in_sync_replicas:
        if chosen.alive and (
            chosen.broker_address != broker.address
            if address is None
            else chosen.broker_address == address
        ):
            header = ElectMasterHeader(broker.cluster, broker.name, chosen.broker_id, True)
            await move_master(admin, leader, group, header)
            return leader, group, chosen
    if address is not None:
        raise TrioMQError(
            f"{address} is not alive in the sync state set of {broker.name}, so it may lack"
            " messages; see mqadmin broker replicas"
        )
    raise TrioMQError(
        f"no other living broker of {broker.name} is in its sync state set: without"
        f" {broker.address} the group takes no messages; see mqadmin broker replicas"
    )


async def move_master(
    admin: Admin, leader: str, group: GroupReplicas, header: ElectMasterHeader
) -> None:
    """Have a broker elected: by the master if both are alive in the set, else by the controllers.

    Raises: TrioMQError.
    """
    master = group.master_address
    alive = {one.broker_id for one in group.in_sync_replicas if one.alive}
    if (
        master is None
        or header.broker_id == group.master_broker_id
        or not {header.broker_id, group.master_broker_id} <= alive
        or not await _hands_over(admin, master, header)
    ):
        await admin.ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, header)


async def _hands_over(admin: Admin, master: str, header: ElectMasterHeader) -> bool:
    """Ask a master of TrioMQ, which first lets the set have every message; return whether it could
    be asked. Raises: BrokerError if it refuses.
    """
    try:
        await admin.ask(master, RequestCode.CONTROLLER_ELECT_MASTER, header)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return False
    except TrioMQError:  # it is dead or silent
        return False
    return True


async def controllers_of(admin: Admin, broker: BrokerAddress) -> list[str]:
    """Return the controllers of a broker, none in classic mode. Raises: TrioMQError."""
    settings = await _settings(admin, broker)
    if settings.get("enableControllerMode") != "true":
        return []
    return [part for part in settings.get("controllerAddr", "").split(";") if part]


async def permission_of(admin: Admin, broker: BrokerAddress) -> int:
    """Return the broker's setting. Raises: TrioMQError."""
    try:
        return int((await _settings(admin, broker))[SETTING])
    except (KeyError, ValueError) as error:
        raise ProtocolBroken(
            f"{broker.address} sent settings without a number for {SETTING} ({error})"
        ) from None


async def _settings(admin: Admin, broker: BrokerAddress) -> dict[str, str]:
    body = bytes((await admin.ask(broker.address, RequestCode.GET_BROKER_CONFIG)).body)
    try:
        return parse_properties(body.decode())
    except (UnicodeDecodeError, PropertiesError) as error:
        raise ProtocolBroken(f"{broker.address} sent no settings ({error})") from None


async def stop_writes(admin: Admin, broker: BrokerAddress) -> tuple[Drained, Answers[int]]:
    """Keep clients from writing to a broker until ``allow_writes``.

    Returns: its permission before; and by name server the number of topics whose route changed.
    Raises: TrioMQError if the broker, or every name server, does not do its part.
    """
    permission = await permission_of(admin, broker)
    stored = await stored_drain(admin, broker.name)
    if stored is None or permission & PERM_WRITE:
        stored = Drained(permission, now_ms())
        # First this: a drain that fails half-way can be undone.
        put = PutKvConfigHeader(namespace=NAMESPACE, key=broker.name, value=stored.text)
        (await _at_name_servers(admin, RequestCode.PUT_KV_CONFIG, put)).some()
    await _set_permission(admin, broker, stored.before & ~PERM_WRITE)

    async def wipe(address: str) -> int:
        code, header = RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker.name)
        answer = await admin.ask(address, code, header)
        return read_header(WipeWritePermResponseHeader, answer).topic_count or 0

    return stored, await admin.for_each(admin.namesrv_addresses, wipe)


async def allow_writes(admin: Admin, broker: BrokerAddress) -> tuple[int, bool, Answers[object]]:
    """Give a broker its permission from before the drain back.

    Returns: that permission; whether it was stored (otherwise the present one with writing); the
    answers of the name servers.
    Raises: TrioMQError if the broker, or every name server, does not do its part.
    """
    present = await permission_of(admin, broker)
    stored = await stored_drain(admin, broker.name)
    wanted = present | PERM_WRITE if stored is None else stored.before
    if present != wanted:
        # The change makes the broker register, which undoes the wipe. To add the permission at the
        # name servers instead would make topics writable that are not.
        await _set_permission(admin, broker, wanted)
    header = KvConfigHeader(namespace=NAMESPACE, key=broker.name)
    answers = await _at_name_servers(admin, RequestCode.DELETE_KV_CONFIG, header)
    return wanted, stored is not None, answers


async def stored_drain(admin: Admin, name: str) -> Drained | None:
    """Return what the first name server that has it keeps of a broker's drain.

    Raises: NoBrokerAnswered if no name server answers.
    """

    async def stored_value(address: str) -> str | None:
        header = KvConfigHeader(namespace=NAMESPACE, key=name)
        try:
            answer = await admin.ask(address, RequestCode.GET_KV_CONFIG, header)
        except BrokerError:
            return None  # the name server's answer when there is no such value
        return read_header(GetKvConfigResponseHeader, answer).value

    answers = (await admin.for_each(admin.namesrv_addresses, stored_value)).some()
    found = (drained_of(text) for text in answers.values())
    return next((value for value in found if value is not None), None)


async def has_producers(admin: Admin, address: str) -> bool:
    """Return whether producers are connected to a broker; True if it cannot tell.

    Raises: TrioMQError if it does not answer.
    """
    try:
        answer = await admin.ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
    except BrokerError:
        return True  # older than the request
    return any(read_body(ProducerTable, answer).data.values())


async def unread(admin: Admin, address: str, but: Collection[str]) -> list[Unread]:
    """Return the groups that have not read everything on a broker, most messages first.

    ``but``: groups that do not count. Those of the system never do.

    Raises: TrioMQError.
    """
    code, header = RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader()
    stats = read_body(BrokerConsumeStats, await admin.ask(address, code, header))
    lags: dict[str, list[int]] = {}
    for entry in stats.consume_stats_list:
        for group, tables in entry.items():
            if group in but or is_system_group(group):
                continue
            for table in tables:
                for offset in table.offset_table.values():
                    lag = offset.broker_offset - offset.consumer_offset
                    lags.setdefault(group, []).extend([lag] if lag > 0 else [])
    found = [Unread(group, sum(lag), len(lag)) for group, lag in lags.items() if lag]
    return sorted(found, key=lambda one: (-one.lag, one.group))


async def _set_permission(admin: Admin, broker: BrokerAddress, permission: int) -> None:
    body = format_properties({SETTING: str(permission)}).encode()
    await admin.ask(broker.address, RequestCode.UPDATE_BROKER_CONFIG, body=body)


async def _at_name_servers(admin: Admin, code: RequestCode, header: object) -> Answers[object]:
    """Ask all name servers: they do not talk to each other."""
    return await admin.for_each(
        admin.namesrv_addresses, lambda address: admin.ask(address, code, header)
    )
