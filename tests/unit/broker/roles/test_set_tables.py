"""What a master answers about tables that the members of its set must have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.broker.processors.controller_notices import NEWS_SECONDS, ControllerNotices
from triomq.broker.replication.master_set import MasterSet, SetRules
from triomq.broker.roles.set_tables import SetTables
from triomq.remoting.core.errors import ConnectFailed, Rejected
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader


@attrs.define(eq=False)
class Members:
    """Brokers 2 and 3 as their master reaches them, and the controllers."""

    answers: dict[str, int] = attrs.field(factory=dict)
    """Code of each member's answer; 0 unless set, and -1: it hangs."""
    heard: list[tuple[str, bytes]] = attrs.field(factory=list)
    proposed: list[frozenset[int]] = attrs.field(factory=list)

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        self.heard.append((address, bytes(command.body)))
        code = self.answers.get(address, 0)
        if code < 0:
            await trio.sleep(timeout)
            raise ConnectFailed(address, "it hangs")
        await trio.lowlevel.checkpoint()
        return Command(code)

    async def propose(self, members: frozenset[int], set_epoch: int) -> tuple[frozenset[int], int]:
        await trio.lowlevel.checkpoint()
        self.proposed.append(members)
        return members, set_epoch + 1

    def tables(self, *members: int) -> SetTables:
        membership: Any = SimpleNamespace(
            controllers=SimpleNamespace(caller=self),
            addresses={2: "two:1", 3: "three:1"},
            propose=self.propose,
        )
        leads = MasterSet(
            own_id=1,
            epoch_start=0,
            members=frozenset(members),
            set_epoch=1,
            rules=SetRules(),
            since=0.0,
        )
        return SetTables(leads, membership, ExchangeHaAddressHeader("ha:2", None, "one:1"), 3.0)


@pytest.mark.parametrize(
    ("code", "holds"),
    [
        (0, True),
        (-1, False),
        (ResponseCode.SYSTEM_ERROR, False),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True),
    ],
    ids=["copied", "hangs", "follows another master", "an earlier version"],
)
async def test_a_change_is_answered_when_every_member_has_it(
    autojump_clock: trio.testing.MockClock, code: int, holds: bool
) -> None:
    members = Members({"three:1": code})
    tables = members.tables(1, 2, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        tables.note_change()
        if holds:
            await tables.wait()
            assert sorted(members.heard) == [("three:1", b""), ("two:1", b"")]
        else:
            with pytest.raises(Rejected, match="may be lost"):
                await tables.wait()
            tables.leads.note_agreed(frozenset({1, 2}), 2)
            await tables.wait()  # whoever has left the set is not waited for
            assert [address for address, _ in members.heard].count("two:1") == 1
        nursery.cancel_scope.cancel()


async def test_no_client_waits_for_members_that_follow_another_master(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The stop of this master's role waits for its answers."""
    tables = Members({"two:1": -1}).tables(1, 2)
    tables.note_change()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        for _ in range(2):
            begun = trio.current_time()
            with pytest.RaisesGroup(pytest.RaisesExc(Rejected, match="another broker")):
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(tables.wait)
                    await trio.testing.wait_all_tasks_blocked()
                    tables.depose()
            assert trio.current_time() == begun
        nursery.cancel_scope.cancel()


async def test_commits_travel_together_and_only_those(
    autojump_clock: trio.testing.MockClock,
) -> None:
    members = Members()
    tables = members.tables(1, 2)
    answered: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        await trio.testing.wait_all_tasks_blocked()
        for queue_id in range(3):
            answer: Any = SimpleNamespace(
                finish=lambda make, number=queue_id: answered.append(f"{make().code} {number}")
            )
            tables.commit("G", "T", queue_id, 10 + queue_id, answer)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(answered) == ["0 0", "0 1", "0 2"]
        ((_, body),) = members.heard
        assert ConsumerOffsetTable.decode(body).offset_table == {"T@G": {0: 10, 1: 11, 2: 12}}
        nursery.cancel_scope.cancel()


async def test_who_joins_has_the_tables_before_the_controllers_hear_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    members = Members({"three:1": ResponseCode.SYSTEM_ERROR})
    tables = members.tables(1, 2)
    with pytest.raises(Rejected):
        await tables.propose(frozenset({1, 2, 3}), 1)
    assert members.proposed == []
    members.answers.clear()
    begun = trio.current_time()
    await tables.propose(frozenset({1, 2, 3}), 1)
    assert trio.current_time() == begun
    assert set(members.heard) == {("three:1", b"")}
    members.answers["two:1"] = -1
    await tables.propose(frozenset({1}), 1)  # a smaller set waits for nobody
    assert members.proposed == [frozenset({1, 2, 3}), frozenset({1})]


@pytest.mark.parametrize("body", [b"", b'{"offsetTable":{}}'], ids=["tables", "commits"])
async def test_a_slave_that_cannot_copy_refuses_after_some_seconds(
    autojump_clock: trio.testing.MockClock, body: bytes
) -> None:
    """Its master asks again and again: waits without a limit would fill the pool."""

    async def hangs(*_: object) -> None:
        await trio.sleep_forever()

    nothing: Any = None
    copy: Any = SimpleNamespace(
        master=SimpleNamespace(remoting="one:1"), copy_now=hangs, take_commits=hangs
    )
    tenure: Any = SimpleNamespace(is_master=False)
    request: Any = SimpleNamespace(
        header=ExchangeHaAddressHeader("ha:2", None, "one:1"), body=body, code=906
    )
    begun = trio.current_time()
    with pytest.raises(Rejected, match="not copied within"):
        await ControllerNotices(nothing, nothing, tenure, copy).master_address(request)
    assert trio.current_time() - begun == pytest.approx(NEWS_SECONDS)
