"""How a master that starts takes over from a slow slave, and what a slave does with a flood of
notices about its group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from stores import empty_store

from triomq.broker.processors.group_changes import PAUSE_SECONDS, REPORT_SECONDS, GroupChanges
from triomq.broker.replication.slave import MasterAddress
from triomq.broker.roles.acting_rules import HANDOVER_SECONDS
from triomq.broker.roles.takeover import (
    HAND_OVER_SECONDS,
    SEARCH_SECONDS,
    TABLE_SECONDS,
    MasterTakeover,
)
from triomq.broker.services.delay import open_delayed_messages
from triomq.broker.services.offsets import open_consumer_offsets
from triomq.broker.services.persisted import Version
from triomq.broker.services.remote_sender import SEND_SECONDS
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost, RequestTimeout
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.protocol.headers.registration import MinBrokerIdChangeHeader

OWN = "m:1"
PROGRESS = DelayOffsetTable({2: 9}, DataVersion(0, 7, 3))
COMMITS = ConsumerOffsetTable({"T@G": {0: 7}}, DataVersion(0, 7, 3))


@attrs.define(eq=False)
class Slaves:
    """Address -> (seconds until the answer to 906, address of the master in it), or an error to
    raise. Tables come at once.
    """

    answers: dict[str, tuple[float, str | None] | Exception]
    asked: list[tuple[str, int]] = attrs.field(factory=list)
    views: list[dict[int, str]] | None = None
    """What name servers say; None: one lists all slaves."""
    log_end: int = 9
    lost: int = 0
    """So many requests end with their connection."""
    code: int = 0
    """of the answer to 906"""

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        self.asked.append((address, command.code))
        answer = self.answers[address]
        if self.lost:
            self.lost -= 1
            raise ConnectionLost(address, "reset")
        if isinstance(answer, Exception):
            raise answer
        if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
            return response_to(command, body=PROGRESS.encode())
        if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            return response_to(command, body=COMMITS.encode())
        assert command.code == RequestCode.EXCHANGE_BROKER_HA_INFO
        with trio.move_on_after(timeout):
            await trio.sleep(answer[0])
            return response_to(
                command, self.code, header=ExchangeHaAddressHeader("m:2", 0, answer[1])
            )
        raise RequestTimeout(address, command.code, timeout)

    async def oneway(self, address: str, command: Command, *, timeout: float) -> None:
        raise AssertionError("every request has an answer")

    async def members(self) -> list[dict[int, str]]:
        await trio.lowlevel.checkpoint()
        return self.views if self.views is not None else [dict(enumerate(self.answers, 1))]

    def master(self, folder: Path) -> MasterTakeover:
        delayed = open_delayed_messages(folder, empty_store(), None, Version(lambda: 1), lambda: 1)  # type: ignore[arg-type]
        settings = SimpleNamespace(ha_address="m:2", broker_address=OWN)
        group: Any = SimpleNamespace(
            askable=True, members=self.members, registrar=SimpleNamespace(settings=settings)
        )
        return MasterTakeover(
            group,
            self,
            delayed,
            open_consumer_offsets(folder, Version(lambda: 0)),
            lambda: self.log_end,
        )


def taken(master: MasterTakeover) -> tuple[dict[int, int], int | None]:
    return master.delayed.offsets, master.offsets.committed_offset("G", "T", 0)


@pytest.mark.parametrize(
    ("seconds", "reported", "offset"),
    [(0, OWN, None), (SEND_SECONDS + REPORT_SECONDS, OWN, None), (0, None, 7), (600, OWN, 7)],
    ids=[
        "at once",
        "ends its master tasks and reports slowly",
        "does not report commits",
        "never answers",
    ],
)
async def test_the_master_knows_what_was_delivered_in_its_place(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    seconds: float,
    reported: str | None,
    offset: int | None,
) -> None:
    """The master takes over the commits itself if the slave has not reported them."""
    master = Slaves({"s:1": (seconds, reported)}).master(tmp_path)
    await master.run()
    assert taken(master) == ({2: 9}, offset)


async def test_a_slave_that_never_acts_has_nothing_to_hand_over(tmp_path: Path) -> None:
    slaves = Slaves({"s:1": (0, None)}, code=ResponseCode.SYSTEM_ERROR)
    master = slaves.master(tmp_path)
    await master.run()
    assert slaves.asked == [("s:1", RequestCode.EXCHANGE_BROKER_HA_INFO)]
    assert taken(master) == ({}, None)


async def test_slow_slaves_are_asked_side_by_side(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """All answers come before a slave that has handed over takes the master for dead."""
    caplog.set_level(logging.INFO)
    slaves = Slaves(
        {
            "s:1": (600, OWN),
            "s:2": ConnectFailed("s:2", "refused"),
            "s:3": (600, OWN),
            "s:4": (1, OWN),
        }
    )
    master, begin = slaves.master(tmp_path), trio.current_time()
    await master.run()
    assert trio.current_time() - begin + 2 * TABLE_SECONDS < HANDOVER_SECONDS
    assert SEND_SECONDS + REPORT_SECONDS < HAND_OVER_SECONDS
    assert taken(master) == ({2: 9}, 7)
    assert "slave s:2 does not hand over: cannot connect to s:2: refused" in caplog.text
    assert "slave s:4 handed over" in caplog.text


@pytest.mark.parametrize("views", [[], [{}], [{0: OWN}]], ids=["silent", "new", "lists the master"])
async def test_a_slave_that_no_name_server_knows_says_where_it_is(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, views: list[dict[int, str]]
) -> None:
    master = Slaves({"s:1": (0, None)}, views=views).master(tmp_path)
    changes = GroupChanges(True, master.group.registrar, lambda: 9, hear=master.hear)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.run)
        await trio.sleep(SEARCH_SECONDS / 2)
        assert taken(master) == ({}, None)
        header = ExchangeHaAddressHeader(master_address="s:1")
        answer = await changes.master_address(asked(RequestCode.EXCHANGE_BROKER_HA_INFO, header))
        assert isinstance(answer.header, ExchangeHaAddressHeader)
        assert answer.header.master_address == OWN
    assert taken(master) == ({2: 9}, 7)


@pytest.mark.parametrize(
    ("views", "log_end", "seconds"),
    [([], 9, SEARCH_SECONDS), ([{}], 9, SEARCH_SECONDS), ([], 0, SEARCH_SECONDS), ([{}], 0, 0)],
)
async def test_a_master_waits_for_a_slave_for_so_long(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    views: list[dict[int, str]],
    log_end: int,
    seconds: float,
) -> None:
    """A new master need not wait: nobody had to act for it."""
    begin = trio.current_time()
    await Slaves({}, views=views, log_end=log_end).master(tmp_path).run()
    assert trio.current_time() - begin == seconds
    assert ("what one has done in place of this master may come twice" in caplog.text) == bool(
        seconds
    )


async def test_a_lost_connection_hides_nothing_from_the_master(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    master = Slaves({"s:1": (0, OWN)}, lost=1).master(tmp_path)
    await master.run()
    assert taken(master) == ({2: 9}, None)


@attrs.define(eq=False)
class Group:
    """Stands in for the parts of a slave that ``GroupChanges`` calls."""

    checks: int = 0
    announced: int = 0
    report_seconds: float = 0.0
    reported: list[str] = attrs.field(factory=list)
    refuses: bool = False
    lost: int = 0
    """So many reports end with their connection."""

    def check_now(self) -> None:
        self.checks += 1

    def announce_again(self) -> None:
        self.announced += 1

    async def hand_over(self) -> None:
        await trio.lowlevel.checkpoint()

    async def report_commits(self, address: str) -> None:
        self.reported.append(address)
        await trio.sleep(self.report_seconds)
        if self.lost:
            self.lost -= 1
            raise ConnectionLost(address, "reset")
        if self.refuses:
            raise ConnectFailed(address, "refused")

    def changes(self) -> GroupChanges:
        parts: Any = self
        registrar: Any = SimpleNamespace(servers=self, settings=None)
        slave: Any = SimpleNamespace(master=MasterAddress())
        return GroupChanges(True, registrar, lambda: 0, slave, parts, parts)


def asked(code: int, header: object) -> Any:
    return SimpleNamespace(code=code, header=header, connection=SimpleNamespace(peer_text="ns:1"))


async def test_a_flood_of_notices_leads_to_one_check_a_second(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    group = Group()
    changes = group.changes()
    news = asked(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChangeHeader(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changes.run)
        changes.smallest_id(news)
        await trio.testing.wait_all_tasks_blocked()
        assert (group.checks, group.announced) == (1, 1), "at once"
        for _ in range(1000):
            changes.smallest_id(news)
            await trio.sleep(PAUSE_SECONDS / 2000)
        await trio.sleep(10 * PAUSE_SECONDS)
        assert (group.checks, group.announced) == (2, 2), "the last one is not forgotten"
        nursery.cancel_scope.cancel()
    assert caplog.text.count("says that the smallest id") == 1


@pytest.mark.parametrize(
    ("seconds", "address"), [(REPORT_SECONDS / 2, OWN), (REPORT_SECONDS * 60, None)]
)
async def test_a_slave_answers_in_time_even_if_the_master_does_not_answer(
    autojump_clock: trio.testing.MockClock, seconds: float, address: str | None
) -> None:
    changes: Callable[..., Any] = Group(report_seconds=seconds).changes().master_address
    begin = trio.current_time()
    answer = await changes(
        asked(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaAddressHeader("m:2", 0, OWN))
    )
    assert trio.current_time() - begin <= REPORT_SECONDS + 0.1
    assert answer.header.master_address == address


async def test_a_connection_to_the_process_before_does_not_end_a_report() -> None:
    group = Group(lost=1)
    header = ExchangeHaAddressHeader("m:2", 0, OWN)
    ask: Callable[..., Any] = group.changes().master_address
    answer = await ask(asked(RequestCode.EXCHANGE_BROKER_HA_INFO, header))
    assert answer.header.master_address == OWN
    assert group.reported == [OWN, OWN]


async def test_commits_are_reported_to_one_of_many_masters_at_a_time(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Other masters are answered at once, without their address: they take over the table
    themselves.
    """
    caplog.set_level(logging.INFO)
    group = Group(report_seconds=1.0)
    ask: Callable[..., Any] = group.changes().master_address
    answered: dict[str, tuple[float, str | None]] = {}

    async def say(address: str) -> None:
        answer = await ask(
            asked(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaAddressHeader("m:2", 0, address))
        )
        answered[address] = (trio.current_time(), answer.header.master_address)

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(say, "first:1")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(1000):
            nursery.start_soon(say, f"m:{number}")
        await trio.testing.wait_all_tasks_blocked()
        assert group.reported == ["first:1"]
        assert len(answered) == 1000
        assert {address for _, address in answered.values()} == {None}
        assert trio.current_time() == begin
    assert answered["first:1"][1] == "first:1"
    assert caplog.text.count("are reported to another") == 1
    group.refuses, group.report_seconds = True, 0.0
    for _ in range(50):  # one after the other, all out of reach: each is tried, one line is logged
        await say("away:1")
    assert group.reported[1:] == ["away:1"] * 50
    assert answered["away:1"][1] is None
    assert caplog.text.count("cannot report commits of consumers to master away:1") == 1
    group.refuses = False
    await say("last:1")
    assert answered["last:1"][1] == "last:1"


def test_a_flood_of_master_addresses_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    master = MasterAddress()
    for number in range(100):
        master.update(f"m:{number}", f"n:{number}")
    assert (master.ha, caplog.text.count("the master is")) == ("m:99", 1)
