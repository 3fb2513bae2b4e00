"""Heartbeats of a proxy with many groups, at brokers that note what they are told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import attrs
import trio
import trio.lowlevel
import trio.testing

from triomq.client.proxy.group_places import GroupPlaces
from triomq.client.proxy.joined_clients import GroupKey, JoinedClients
from triomq.client.proxy.registrations import (
    DISCOVERY_SECONDS,
    DISCOVERY_TOPICS,
    HEARTBEAT_SECONDS,
    PART_GROUPS,
    Registrations,
)
from triomq.remoting.core.errors import ConnectionLost
from triomq.remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.bodies.route import BrokerData, TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.client import UnregisterClientHeader

MANY = 5_000


@attrs.define(eq=False)
class NotingBrokers:
    """Brokers, by address. ``refuses``: groups whose heartbeats are refused."""

    addresses: list[str] = attrs.field(factory=lambda: ["a:1", "b:1"])
    down: set[str] = attrs.field(factory=set)
    refuses: set[str] = attrs.field(factory=set)
    members: dict[tuple[str, int], set[GroupKey]] = attrs.field(factory=dict)
    """Groups by address and connection."""
    beats: list[tuple[str, int, list[str]]] = attrs.field(factory=list)
    """Address, connection and groups of each heartbeat."""
    client_ids: dict[int, set[str]] = attrs.field(factory=dict)
    looked_up: int = 0

    async def route(self, topic: str) -> TopicRoute | None:
        self.looked_up += 1
        return TopicRoute(
            [], [BrokerData("c", address[0], {0: address}) for address in self.addresses]
        )

    async def call(self, number: int, address: str, command: Command, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        if address in self.down:
            raise ConnectionLost(address, "as the test says")
        members = self.members.setdefault((address, number), set())
        if command.code == RequestCode.UNREGISTER_CLIENT:
            header = command.header(UnregisterClientHeader)
            name = header.consumer_group or header.producer_group or ""
            members.discard(GroupKey(header.consumer_group is not None, name))
            return response_to(command)
        data = HeartbeatData.decode(bytes(command.body))
        groups = [
            *(GroupKey(False, one.group) for one in data.producers),
            *(GroupKey(True, one.group) for one in data.consumers),
        ]
        self.client_ids.setdefault(number, set()).add(data.client_id)
        self.beats.append((address, number, [group.name for group in groups]))
        if self.refuses & {group.name for group in groups}:
            return response_to(command, ResponseCode.INVALID_PARAMETER, remark="too many")
        members.update(groups)
        return response_to(command)

    def known(self, address: str) -> list[GroupKey]:
        return sorted(
            group
            for place, groups in self.members.items()
            if place[0] == address
            for group in groups
        )


@contextlib.asynccontextmanager
async def registering(
    brokers: NotingBrokers, groups_per_connection: int = 1_000
) -> AsyncIterator[Registrations]:
    made = Registrations(
        "P", brokers.route, brokers.call, JoinedClients(), GroupPlaces(groups_per_connection)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield made
        nursery.cancel_scope.cancel()


def client(number: int, group: str) -> HeartbeatData:
    """One consumer."""
    subscriptions = [SubscriptionData(topic="T")]
    return HeartbeatData(
        client_id=f"c{number}", consumers=[ConsumerData(group=group, subscriptions=subscriptions)]
    )


def producers(name: str, count: int) -> HeartbeatData:
    return HeartbeatData(
        client_id=name, producers=[ProducerData(f"{name}{each}") for each in range(count)]
    )


async def test_5000_groups_go_in_parts_over_a_few_connections(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = NotingBrokers()
    async with registering(brokers) as registrations:
        await registrations.register(producers("t", MANY - 1))
        await registrations.register(client(0, "G"))
        everything = sorted(registrations.joined.groups())
        assert len(everything) == MANY
        for address in brokers.addresses:
            assert brokers.known(address) == everything
            sizes = [len(brokers.members[address, number]) for number in range(5)]
            assert sizes == [1_000] * 5, "one more would be refused"
        assert all(len(groups) <= PART_GROUPS for _, _, groups in brokers.beats)
        assert brokers.client_ids == {
            number: {f"P#{number}" if number else "P"} for number in range(5)
        }
        assert registrations.known_to == set(brokers.addresses)


async def test_a_change_is_told_alone_and_everything_at_the_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = NotingBrokers()
    async with registering(brokers) as registrations:
        await registrations.register(producers("t", 2_500))
        brokers.beats.clear()
        brokers.looked_up = 0
        await registrations.register(client(0, "G"))
        assert sorted(brokers.beats) == [("a:1", 2, ["G"]), ("b:1", 2, ["G"])]
        assert brokers.looked_up == 1
        brokers.beats.clear()
        await registrations.register(client(1, "G"))  # one more member changes nothing
        await trio.sleep(DISCOVERY_SECONDS + 0.1)
        assert brokers.beats == []
        assert brokers.looked_up <= 1 + DISCOVERY_TOPICS
        await trio.sleep(HEARTBEAT_SECONDS)
        told = [name for address, _, groups in brokers.beats if address == "a:1" for name in groups]
        assert sorted(told) == sorted(group.name for group in registrations.joined.groups())


async def test_a_group_that_is_gone_leaves_its_place_to_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = NotingBrokers()
    async with registering(brokers, groups_per_connection=2) as registrations:
        for number in range(4):
            await registrations.register(client(number, f"G{number}"))
        registrations.forget("c1")
        await registrations.register(client(9, "G9"))
        assert brokers.members["a:1", 0] == {GroupKey(True, "G0"), GroupKey(True, "G9")}
        assert brokers.members["a:1", 1] == {GroupKey(True, "G2"), GroupKey(True, "G3")}
        await registrations.unregister("c9", [], ["G9"])
        assert brokers.members["b:1", 0] == {GroupKey(True, "G0")}
        await registrations.unregister_all()
        assert brokers.known("a:1") == brokers.known("b:1") == []


async def test_a_connection_that_ends_is_told_its_own_groups_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = NotingBrokers()
    async with registering(brokers, groups_per_connection=2) as registrations:
        for number in range(4):
            await registrations.register(client(number, f"G{number}"))
        brokers.beats.clear()
        brokers.down = {"b:1"}
        del brokers.members["b:1", 1]
        registrations.connection_lost("b:1", 1)
        await trio.sleep(DISCOVERY_SECONDS / 2)
        assert registrations.known_to == {"a:1"}
        brokers.down = set()
        await trio.sleep(2 * DISCOVERY_SECONDS)
        assert [(address, number) for address, number, _ in brokers.beats] == [("b:1", 1)]
        assert brokers.known("b:1") == brokers.known("a:1")


async def test_a_refused_part_keeps_no_other_away(autojump_clock: trio.testing.MockClock) -> None:
    brokers = NotingBrokers(refuses={"t50"})
    async with registering(brokers) as registrations:
        await registrations.register(producers("t", 3 * PART_GROUPS))
        assert len(brokers.known("a:1")) == 2 * PART_GROUPS
        assert registrations.known_to == set()
        brokers.refuses.clear()
        await trio.sleep(2 * DISCOVERY_SECONDS)
        assert len(brokers.known("a:1")) == 3 * PART_GROUPS
        assert registrations.known_to == {"a:1", "b:1"}


async def test_a_new_broker_hears_of_all_groups_soon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = NotingBrokers()
    async with registering(brokers) as registrations:
        await registrations.register(client(0, "G"))
        brokers.addresses.append("c:1")
        await trio.sleep(2 * DISCOVERY_SECONDS)
        assert brokers.known("c:1") == [GroupKey(True, "G")]
        brokers.addresses.remove("a:1")
        await trio.sleep(HEARTBEAT_SECONDS + 1)
        brokers.beats.clear()
        await trio.sleep(HEARTBEAT_SECONDS)
        assert {address for address, _, _ in brokers.beats} == {"b:1", "c:1"}
