"""``Agreement``: whether the members of a group consume alike, as a group must.

A broker keeps one subscription for each topic of a group. With different tags some messages reach
no member; members that own queues and members that pop (POP) get each message twice. A broker tells
who the members are, and each of them, through the broker, what it does. Each member is asked until
it answers, at most ``ATTEMPTS_MAX`` times, and a difference is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

import attrs
import trio

from triomq.client.core.broker_errors import PermissionDenied
from triomq.client.core.errors import TrioMQError
from triomq.client.core.session import Session
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.bodies.groups import ConnectionData, ConsumerConnection
from triomq.remoting.protocol.bodies.heartbeat import TAG, SubscriptionData
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader, ConsumerRunningHeader
from triomq.remoting.protocol.names import RETRY_PREFIX

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""from a change of the group to the questions: a new member answers a moment after it joined, and
several changes lead to one round"""
ASKED_MAX = 4
"""members that are asked in one round; the others' turn comes in the next one"""
ATTEMPTS_MAX = 3
"""questions to one member: some clients never answer"""
REMEMBERED_MAX = 10_000
"""members that were asked, and differences that were logged"""


@attrs.define(eq=False)
class Agreement:
    """Compares this member with the others of its group whenever the group changes."""

    session: Session
    group: str
    subscriptions: Mapping[str, SubscriptionData]
    """this member's own; ``subscribe`` and ``unsubscribe`` change it"""
    pops: bool
    """whether this member pops, instead of pulling the queues that it owns"""
    _asked: dict[str, int] = attrs.field(factory=dict, init=False)
    """client id → failed attempts, ``ATTEMPTS_MAX`` after an answer"""
    _reported: set[str] = attrs.field(factory=set, init=False)
    _table: dict[str, str] | None = attrs.field(default=None, init=False)
    """what the broker had last that is not this member's own"""
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def changed(self) -> None:
        """Compare soon: a member joined, left or subscribed to something else."""
        self._changed.set()

    async def compare_after_changes(self) -> None:
        """Compare at the start and after each change, until the broker forbids to ask."""
        while True:
            await trio.sleep(SETTLE_SECONDS)
            self._changed = trio.Event()
            complete = True
            try:
                complete = await self._compare()
            except PermissionDenied:
                return
            except TrioMQError as error:
                logger.debug("members of group %s are not compared: %s", self.group, error)
            if complete:
                await self._changed.wait()

    async def _compare(self) -> bool:
        """Ask a broker for the members, and those that have not answered what they do.

        Returns: whether no member has to be asked again.
        Raises: ``TrioMQError``.
        """
        address = self._broker()
        if address is None:
            return True
        others = await self._others(address)
        if len(self._asked) >= REMEMBERED_MAX or len(self._reported) >= REMEMBERED_MAX:
            return True
        new = [each for each in others if self._asked.get(each.client_id, 0) < ATTEMPTS_MAX]
        for member in new[:ASKED_MAX]:
            attempts = self._asked.get(member.client_id, 0) + 1
            self._asked[member.client_id] = ATTEMPTS_MAX
            try:
                running = await self._running(address, member.client_id)
            except PermissionDenied:
                raise
            except TrioMQError as error:
                logger.debug("member %s does not say what it does: %s", member.client_id, error)
                self._asked[member.client_id] = attempts
                continue
            found = "; ".join(self._differences(running))
            text = f"member {member.client_addr} ({member.client_id}) {found}"
            if found and text not in self._reported:
                self._reported.add(text)
                logger.warning(
                    "group %s: %s. Messages are skipped or handled twice: give all members of the"
                    " group the same subscriptions and mode, or other members another group",
                    self.group,
                    text,
                )
        return all(self._asked.get(each.client_id, 0) >= ATTEMPTS_MAX for each in new)

    def _broker(self) -> str | None:
        """Return a broker that has heard of this member through one of its topics."""
        routes = self.session.routes
        for topic in self.subscriptions:
            known = None if topic.startswith(RETRY_PREFIX) else routes.topic(topic)
            for name in known.brokers if known is not None else ():
                address = routes.master(name)
                if address in self.session.heartbeats.registered:
                    return address
        return None

    async def _others(self, address: str) -> list[ConnectionData]:
        header = ConsumerGroupHeader(consumer_group=self.group)
        command = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        answer = await self.session.call(address, command, self.session.settings.request_timeout)
        try:
            state = ConsumerConnection.decode(bytes(answer.body))
        except ProtocolError:
            return []
        table = self._wanted(state.subscriptions.values())
        if table not in (self._table, self._wanted(self.subscriptions.values())):
            self._table = table  # a member has subscribed to something else: which one?
            self._asked.clear()
        own = self.session.client_id
        return [member for member in state.connections if member.client_id != own]

    async def _running(self, address: str, client_id: str) -> ConsumerRunning:
        """Ask a member, through the broker. Raises: ``TrioMQError``."""
        header = ConsumerRunningHeader(consumer_group=self.group, client_id=client_id, jstack=False)
        command = request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        answer = await self.session.call(address, command, self.session.settings.request_timeout)
        try:
            return ConsumerRunning.decode(bytes(answer.body))
        except ProtocolError as error:
            raise TrioMQError(f"an unreadable answer: {error}") from error

    def _differences(self, running: ConsumerRunning) -> Iterator[str]:
        own, theirs = self._wanted(self.subscriptions.values()), self._wanted(running.subscriptions)
        for topic in sorted(own.keys() | theirs.keys()):
            if own.get(topic) != theirs.get(topic):
                yield (
                    f"subscribes to {_shown(topic, theirs)}, and this one"
                    f" ({self.session.client_id}) to {_shown(topic, own)}"
                )
        if running.pop_queues and not self.pops:
            yield "pops, and this one pulls"
        if running.queues and self.pops:
            yield "pulls, and this one pops"

    def _wanted(self, subscriptions: Iterable[SubscriptionData]) -> dict[str, str]:
        """Return topic → expression, in a form that can be compared."""
        space = self.session.namespace
        return {
            space.own(each.topic) if space is not None else each.topic: (
                each.sub_string
                if each.expression_type != TAG
                else " || ".join(sorted(each.tags)) or "*"
            )
            for each in subscriptions
            if not each.topic.startswith(RETRY_PREFIX)
        }


def _shown(topic: str, wanted: dict[str, str]) -> str:
    return f"{topic} with {wanted[topic]!r}" if topic in wanted else f"no {topic}"
