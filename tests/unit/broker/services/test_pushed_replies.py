"""Replies that wait for their requesters: limits, deadlines, counters, and who a requester is."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triomq.broker.services.groups import GroupTable, Member
from triomq.broker.services.pushed_replies import PUSH_SECONDS, PushedReplies
from triomq.broker.services.table_limits import BrokerTableLimits, broker_limits
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode


def replies(per_client: int = 2, waiting: int = 3) -> PushedReplies[str]:
    return PushedReplies(
        broker_limits(BrokerTableLimits(replies_per_client_max=per_client)), waiting
    )


async def test_the_limit_of_one_requester_leaves_room_for_others() -> None:
    pushed = replies()
    pushes = []
    for _ in range(2):
        pushed.require_room("silent", "c1")
        pushes.append(pushed.begin("silent", lambda: None))
    with pytest.raises(Rejected) as refusal:
        pushed.require_room("silent", "c1")
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    assert "<c1> has left 2 replies unanswered" in refusal.value.remark
    assert "repliesPerClientMax" in refusal.value.remark
    assert pushed.limits.refused == {"repliesPerClientMax": 1}
    pushed.require_room("other", "c2")
    assert pushed.end(pushes[0], "delivered")
    pushed.require_room("silent", "c1")
    assert pushed.outcomes == {"busy": 1, "delivered": 1}


async def test_the_limit_of_all_requesters_names_its_setting() -> None:
    pushed = replies()
    for client in ("a", "b", "c"):
        pushed.begin(client, lambda: None)
    with pytest.raises(Rejected, match="replyThreadPoolQueueCapacity"):
        pushed.require_room("d", "d")


async def test_a_push_ends_once() -> None:
    pushed = replies()
    push = pushed.begin("a", lambda: None)
    assert pushed.end(push, "delivered")
    assert not pushed.end(push, "unanswered")
    assert (len(pushed), pushed.outcomes) == (0, {"delivered": 1})


async def test_unanswered_pushes_expire_in_order(autojump_clock: MockClock) -> None:
    pushed, expired = replies(), []

    def begin(name: str) -> None:
        def expire() -> None:
            expired.append((name, trio.current_time()))
            pushed.end(push, "unanswered")

        push = pushed.begin(name, expire)

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pushed.run)
        await wait_all_tasks_blocked()
        begin("first")
        await trio.sleep(4)
        begin("second")
        pushed.end(pushed.begin("answered", lambda: expired.append(("never", 0.0))), "delivered")
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert [(name, at - start) for name, at in expired] == [
        ("first", pytest.approx(PUSH_SECONDS)),
        ("second", pytest.approx(PUSH_SECONDS + 4)),
    ]
    assert pushed.outcomes == {"delivered": 1, "unanswered": 2}


def test_a_requester_is_found_by_its_newest_connection() -> None:
    table: GroupTable[str] = GroupTable()

    def heartbeat(connection: str, client_id: str, group: str = "g") -> None:
        table.producer_heartbeat(Member(connection, client_id, 0, 0, 0.0), group)

    assert table.producer_connection("c") is None
    heartbeat("old", "c")
    heartbeat("new", "c")
    heartbeat("old", "c")  # a later heartbeat over the old connection changes nothing
    assert table.producer_connection("c") == "new"
    table.forget_connection("new")
    assert table.producer_connection("c") == "old"
    heartbeat("old", "c", "other")
    table.leave("old", consumer_group=None, producer_group="g")
    assert table.producer_connection("c") == "old"  # it still is a member of the other group
    heartbeat("old", "renamed", "other")
    assert table.producer_connection("c") is None
    assert table.producer_connection("renamed") == "old"
    table.leave("old", consumer_group=None, producer_group="other")
    assert table.producer_connection("renamed") is None
    assert table._by_producer_id == {}
