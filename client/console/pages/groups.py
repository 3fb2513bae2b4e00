"""Consumer groups: lag, members, subscriptions, stacks, and moving a group with a preview."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import trio
from starlette.responses import Response

from triomq.client.admin.answers import Answers, all_of, problem_lines, read_body
from triomq.client.admin.cluster_view import GroupRow
from triomq.client.admin.doctor.group_checks import GroupFacts, hindrances
from triomq.client.admin.doctor.group_facts import read_group_facts
from triomq.client.admin.documents import running_document
from triomq.client.admin.group_resets import END_OF_QUEUE, reset
from triomq.client.admin.times import now_ms
from triomq.client.console.core.forms import FormFields, FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit, ask_all
from triomq.client.console.core.paging import page_of
from triomq.client.console.core.users import UserRole
from triomq.client.core.errors import GroupOffline, TrioMQError
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset, ConsumeStats
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, version_name
from triomq.remoting.protocol.headers.client import ConsumerRunningHeader
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader
from triomq.remoting.protocol.headers.topic import DeleteGroupHeader
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX

KINDS = ("normal", "all")
TARGETS = ("earliest", "latest", "time", "shift")
SHIFT_MAX = 1_000_000_000
WHY_SECONDS = 2.0
"""between the two readings of a group's offsets"""
COLUMNS: Mapping[str, Callable[[GroupRow], str | float | None]] = {
    "name": lambda row: row.name,
    "lag": lambda row: row.lag,
    "in_flight": lambda row: row.in_flight,
    "rate": lambda row: row.rate,
}
"""by which the list can be sorted"""


async def groups(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    kind = visit.query.text("kind") or "normal"
    rows = [
        row for row in visit.console.poller.view.groups.values() if kind == "all" or not row.system
    ]
    listed = visit.listed(rows, COLUMNS, lambda row: row.name)
    return visit.page("groups.html", kind=kind, kinds=KINDS, **listed)


@attrs.frozen
class QueueLag:
    """One queue of a group."""

    queue: MessageQueue
    offset: ConsumeOffset

    @property
    def lag(self) -> int:
        return max(0, self.offset.broker_offset - self.offset.consumer_offset)


async def group(visit: PageVisit) -> Response:
    """Show one group, asked of the brokers now; with ``why=1`` also what holds it back."""
    name, admin = visit.asked.needed("name"), visit.console.admin
    offline = False

    async def read_members() -> Answers[ConsumerConnection] | None:
        nonlocal offline
        try:
            return await admin.consumer_connections(name)
        except GroupOffline:
            offline = True
            return None

    why = {"facts": partial(read_group_facts, admin, name, WHY_SECONDS)}
    parts, problems = await visit.ask(
        stats=partial(admin.consume_stats, name),
        members=read_members,
        **(why if visit.query.text("why") == "1" else {}),
    )
    stats: Answers[ConsumeStats] | None = parts["stats"]
    members: Answers[ConsumerConnection] | None = parts["members"]
    facts: GroupFacts | None = parts.get("facts")
    queues = sorted(
        (
            QueueLag(queue, offset)
            for table in (stats.values.values() if stats is not None else ())
            for queue, offset in table.offset_table.items()
        ),
        key=lambda row: row.queue,
    )
    clients: dict[str, dict[str, Any]] = {}
    subscriptions: dict[str, set[str]] = {}
    connection = None
    for address, connection in members.values.items() if members is not None else ():
        for client in connection.connections:
            clients.setdefault(
                client.client_id,
                {
                    "id": client.client_id,
                    "address": client.client_addr,
                    "language": client.language,
                    "version": version_name(client.version),
                    "broker": address,
                },
            )
        for topic, subscription in connection.subscriptions.items():
            subscriptions.setdefault(topic, set()).add(subscription.sub_string or "*")
    table = page_of(queues, visit.query.text("page"))
    return visit.page(
        "group.html",
        name=name,
        table=table,
        lag=sum(row.lag for row in queues) if stats is not None and stats.values else None,
        whole=stats is not None and not stats.failures,
        rate=sum(part.consume_tps for part in stats.values.values())
        if stats is not None and stats.values
        else None,
        members=sorted(clients.values(), key=lambda client: client["id"]),
        members_known=offline or members is not None,
        subscriptions={topic: sorted(texts) for topic, texts in sorted(subscriptions.items())},
        connection=connection,
        topics=sorted(
            {row.queue.topic for row in queues if not row.queue.topic.startswith(RETRY_PREFIX)}
        ),
        problems=problems,
        dead_topic=DLQ_PREFIX + name,
        facts=facts,
        hindrances=hindrances(facts) if facts is not None else (),
        owners=owners(facts),
        targets=TARGETS,
    )


def owners(facts: GroupFacts | None) -> dict[MessageQueue, str]:
    """Return queue → client id of the members that told their queues."""
    return {
        queue: client_id
        for client_id, running in (facts.running.items() if facts is not None else ())
        for queue in (*running.queues, *running.pop_queues)
    }


async def member(visit: PageVisit) -> Response:
    """Show the state of one member, with its stacks on demand."""
    name, client, broker = (visit.query.needed(key) for key in ("name", "client", "broker"))
    stacks = visit.query.text("stacks") == "1"
    if visit.console.poller.view.broker(broker) is None:
        raise FormInvalid("brokers.none", address=broker[:100])
    header = ConsumerRunningHeader(name, client, stacks)
    with trio.fail_after(10):
        answer = await visit.console.admin.ask(
            broker, RequestCode.GET_CONSUMER_RUNNING_INFO, header
        )
    state = running_document(read_body(ConsumerRunning, answer))
    return visit.page(
        "member.html", name=name, client=client, broker=broker, state=state, stacks=stacks
    )


# --- moving a group


@attrs.frozen
class MovePlan:
    """Where a group shall stand."""

    group: str
    topic: str
    target: str
    """one of TARGETS"""
    timestamp_ms: int
    """of ``time``"""
    by: int
    """messages of ``shift``; below 0 is back"""


def read_plan(form: FormFields) -> MovePlan:
    """Read the form of a move. Raises: FormInvalid."""
    target = form.text("target")
    if target not in TARGETS:
        raise FormInvalid("form.choose", "target")
    timestamp = form.moment_ms("time") if target == "time" else 0
    by = form.whole("by", -SHIFT_MAX, SHIFT_MAX) if target == "shift" else 0
    return MovePlan(form.needed("name"), form.needed("topic"), target, timestamp, by)


@attrs.frozen
class QueueMove:
    """What a move does to one queue."""

    queue: MessageQueue
    present: int | None
    """None: the group has no offset in the queue"""
    wanted: int
    first: int
    last: int

    @property
    def difference(self) -> int | None:
        return None if self.present is None else self.wanted - self.present


async def preview_of(visit: PageVisit, plan: MovePlan) -> tuple[list[QueueMove], list[str]]:
    """Return what a move would do, and why that is unknown of some queues. Raises: TrioMQError."""
    admin = visit.console.admin
    stats = await admin.consume_stats(plan.group, plan.topic)
    present = {
        queue: offset.consumer_offset
        for table in stats.some().values()
        for queue, offset in table.offset_table.items()
    }
    moves: dict[MessageQueue, QueueMove] = {}
    queues = {
        f"{queue.broker_name} {queue.queue_id}": queue for queue in await admin.queues(plan.topic)
    }

    async def preview_queue(label: str) -> None:
        queue = queues[label]
        first, last = await admin.min_offset(queue), await admin.max_offset(queue)
        now = present.get(queue)
        wanted = last
        if plan.target == "earliest":
            wanted = first
        elif plan.target == "time":
            wanted = await admin.offset_by_time(queue, plan.timestamp_ms)
        elif plan.target == "shift":
            wanted = min(max(first, (last if now is None else now) + plan.by), last)
        moves[queue] = QueueMove(queue, now, wanted, first, last)

    problems = problem_lines(await admin.for_each(queues, preview_queue))
    return [moves[queue] for queue in sorted(moves)], problems


async def show_move(visit: PageVisit) -> Response:
    """Show what a move would do; nothing is changed."""
    plan = read_plan(visit.query)
    moves, problems = await preview_of(visit, plan)
    try:
        online: bool | None = bool(
            (await visit.console.admin.consumer_connections(plan.group)).values
        )
    except GroupOffline:
        online = False
    except TrioMQError:
        online = None
    return visit.page("group_move.html", plan=plan, moves=moves, online=online, problems=problems)


async def move(visit: PageVisit) -> Response:
    """Move a group as its preview showed."""
    plan = read_plan(visit.form)
    moves, _ = await preview_of(visit, plan)
    before = {f"{one.queue.broker_name}/{one.queue.queue_id}": one.present for one in moves}
    after = {f"{one.queue.broker_name}/{one.queue.queue_id}": one.wanted for one in moves}
    await visit.change(
        "group.move",
        f"{plan.group} {plan.topic}",
        lambda: _carry_out(visit, plan, moves),
        before=before,
        after={"target": plan.target, "offsets": after},
    )
    visit.done("groups.moved", name=plan.group, topic=plan.topic)
    return visit.go("/group", name=plan.group)


async def _carry_out(visit: PageVisit, plan: MovePlan, moves: list[QueueMove]) -> None:
    admin = visit.console.admin
    brokers = await admin.topic_brokers(plan.topic)
    headers: list[tuple[ResetOffsetHeader, Mapping[str, str]]] = []
    if plan.target == "shift":
        headers = [
            (
                ResetOffsetHeader(
                    plan.group, plan.topic, now_ms(), True, one.queue.queue_id, one.wanted
                ),
                {one.queue.broker_name: brokers[one.queue.broker_name]},
            )
            for one in moves
        ]
    else:
        times = {"earliest": 0, "latest": END_OF_QUEUE, "time": plan.timestamp_ms}
        headers = [
            (ResetOffsetHeader(plan.group, plan.topic, times[plan.target], True, -1, None), brokers)
        ]
    for header, where in headers:
        all_of(await reset(admin, header, where))


async def delete(visit: PageVisit) -> Response:
    """Delete a group's settings and offsets at all masters."""
    name = visit.confirmed()
    masters = [broker.address for broker in await visit.console.admin.brokers(masters_only=True)]
    header = DeleteGroupHeader(name, True, True)
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    await visit.change("group.delete", name, lambda: ask_all(visit, masters, code, header))
    visit.done("groups.deleted", name=name)
    return visit.go("/groups")


PAGES = (
    Page("GET", "/groups", groups),
    Page("GET", "/group", group),
    Page("GET", "/group/member", member),
    Page("GET", "/group/move", show_move, role=UserRole.OPERATOR, form=group),
    Page("POST", "/group/move", move, role=UserRole.OPERATOR, change=True, form=group),
    Page("POST", "/group/delete", delete, role=UserRole.ADMIN, change=True, form=group),
)
