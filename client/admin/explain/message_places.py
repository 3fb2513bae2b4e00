"""Find the records of a message: at all brokers, also where delayed and prepared messages wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import Answers
from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.admin.errors import BrokerMissing
from triomq.client.admin.explain.key_search import TOPICS_MAX, WAITING_TOPICS, search
from triomq.client.admin.explain.outcomes import StoredCopy
from triomq.client.admin.messages import parse_offset_id
from triomq.client.admin.missing_brokers import names_beside, with_missing
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.remoting.protocol.bodies.route import MASTER_ID
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader
from triomq.remoting.protocol.message_properties import REAL_TOPIC, UNIQ_KEY
from triomq.remoting.protocol.names import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    TRACE_TOPIC,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


@attrs.frozen
class AnsweringServers:
    """The servers to ask."""

    addresses: dict[str, str]
    """broker name → address of its first server that answers, of the first one if none does"""
    silent: dict[str, str]
    """broker name → why its first server was not asked, and which one is in its place"""


async def answering_servers(admin: Admin, brokers: Iterable[BrokerAddress]) -> AnsweringServers:
    """Find them. A name with one server is not asked: its first real request will tell."""
    servers: dict[str, list[str]] = {}
    for broker in brokers:  # sorted by id within a name
        servers.setdefault(broker.name, []).append(broker.address)
    silent: dict[str, str] = {}

    async def first_answering(name: str) -> str:
        first, *others = servers[name]
        reason = ""
        for address in [first, *others] if others else []:
            try:
                await admin.ask(
                    address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(DEFAULT_TOPIC, 0)
                )
            except BrokerError:
                pass  # a refusal is an answer
            except TrioMQError as error:
                reason = reason or str(error)
                continue
            if reason:
                silent[name] = f"{reason}; its slave {address} was asked instead"
            return address
        return first

    answers = await admin.for_each(servers, first_answering)
    return AnsweringServers(dict(answers.values), silent)


GIVEN_BACK = (RETRY_PREFIX, DLQ_PREFIX)


@attrs.frozen
class MessagePlaces:
    """The records of the messages that were looked for."""

    stored: list[StoredCopy]
    """in their topics, newest first"""
    waiting: list[StoredCopy]
    """in ``WAITING_TOPICS``, newest first"""
    brokers: Mapping[str, str]
    """name → address of the brokers that were asked"""
    failures: dict[str, str]
    searched: list[str]
    """where they were searched for, as texts"""
    silent_masters: int = 0
    """number of masters that did not answer while a slave of theirs did"""
    unsearched: int = 0
    """number of topics that the limits left out"""


async def find_places(
    admin: Admin,
    word: str,
    topic: str | None,
    *,
    seconds: float = math.inf,
    tell: Callable[[str], None] = lambda _: None,
) -> MessagePlaces:
    """Look for an offset id, a unique id or a key.

    ``seconds``: time for the search in topics. ``tell`` gets a line of progress.

    Raises: TrioMQError if no broker answered, or none is registered.
    """
    import trio  # not for the help: start-up time

    until = trio.current_time() + seconds
    servers = await admin.brokers()
    if not servers:
        with_missing(Answers({}, {}), names_beside((), await admin.missing_brokers())).some()
        raise BrokerMissing("", ())
    answering = await answering_servers(admin, servers)
    brokers = answering.addresses
    places: list[str] = []
    found = await _at_offset(admin, word, servers, brokers)
    if found is not None:
        places.append(f"the log of {found.broker}")
        word = found.message.properties.get(UNIQ_KEY, "")
        real = found.message.properties.get(REAL_TOPIC, found.message.topic)
        topic = real if found.message.topic in WAITING_TOPICS else found.message.topic
    topics = [topic] if topic is not None else await _all_topics(admin)
    wanted = [*WAITING_TOPICS, *(one for one in topics if one not in WAITING_TOPICS)]
    failures = dict(answering.silent)
    copies: list[StoredCopy] = []
    unsearched = 0
    if word:
        searched = await search(admin, brokers, wanted[:TOPICS_MAX], word, until, tell)
        unsearched = len(wanted) - searched.searched
        where = f"topic {topic}" if topic is not None else f"{len(topics) - unsearched} topics"
        places.append(f"ids and keys of {where} at {', '.join(brokers)}")
        places.append("delayed messages and prepared transactions")
        if found is None:
            searched.answers.some()  # raises if no broker answered
        failures |= searched.answers.reasons()
        copies = [copy for some in searched.answers.values.values() for copy in some]
    if found is not None:
        # Its unique id may be missing, or its entry of the index may have expired.
        copies = [copy for copy in copies if not _same(copy, found)] + [found]
    copies.sort(
        key=lambda copy: (copy.message.store_timestamp, copy.message.log_offset), reverse=True
    )
    stored = [copy for copy in copies if copy.message.topic not in WAITING_TOPICS]
    # What groups gave back has the same id; it belongs to the original if that still exists.
    original = [copy for copy in stored if not copy.message.topic.startswith(GIVEN_BACK)]
    return MessagePlaces(
        stored=original if topic is None and original else stored,
        waiting=[
            copy
            for copy in copies
            if copy.message.topic in WAITING_TOPICS and _waits_for(copy, topic)
        ],
        brokers=brokers,
        failures=failures,
        searched=places,
        silent_masters=len(answering.silent),
        unsearched=unsearched,
    )


async def _at_offset(
    admin: Admin, word: str, servers: Sequence[BrokerAddress], answering: Mapping[str, str]
) -> StoredCopy | None:
    """Return the record that an offset id names, None for other ids.

    A unique id has the length of an offset id; only a broker's address tells the difference. If
    that broker hangs, its slave is asked; if it is gone, the slaves without a master are, since the
    record in their copy of the log has the id.
    """
    place = parse_offset_id(word)
    if place is None:
        return None
    address, log_offset = place
    names = {broker.address: broker.name for broker in servers}
    masters = {broker.name for broker in servers if broker.id == MASTER_ID}
    if address in names:
        candidates = {names[address]: answering[names[address]]}
    else:
        candidates = {name: at for name, at in answering.items() if name not in masters}
    for name, at in candidates.items():
        try:
            message = await admin.message_at(at, log_offset)
        except TrioMQError:
            continue  # the look-up by unique id asks that broker, too, and names it
        if message is not None and (at == address or message.offset_message_id == word.upper()):
            return StoredCopy(name, message)
    return None


async def _all_topics(admin: Admin) -> list[str]:
    """Return the topics to search: those of users before those that hold what groups gave back."""
    topics = [one for one in await admin.topics() if one not in (TRACE_TOPIC, OP_HALF_TOPIC)]
    return sorted(topics, key=lambda one: one.startswith(GIVEN_BACK))


def _waits_for(copy: StoredCopy, topic: str | None) -> bool:
    """Return whether a record will get to a topic; None: to any but those of groups."""
    real = copy.message.properties.get(REAL_TOPIC, "")
    return not real.startswith(GIVEN_BACK) if topic is None else real == topic


def _same(one: StoredCopy, other: StoredCopy) -> bool:
    return (one.broker, one.message.log_offset) == (other.broker, other.message.log_offset)
