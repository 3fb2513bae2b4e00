"""Find the records of a message: at all brokers, also where delayed and prepared messages wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin import messages
from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import UsageError
from triomq.client.admin.explain.outcomes import DELAYING_TOPICS, StoredCopy
from triomq.client.admin.messages import UNIQUE_COUNT_MAX, parse_offset_id
from triomq.client.core.errors import BrokerError, OffsetNotFound, TrioMQError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.query import QueryMessageHeader
from triomq.remoting.protocol.message_properties import REAL_TOPIC, UNIQ_KEY
from triomq.remoting.protocol.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    TRACE_TOPIC,
)
from triomq.remoting.protocol.record import StoredMessage

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

WAITING_TOPICS = (*DELAYING_TOPICS, HALF_TOPIC)
"""topics of brokers in which a message waits for its time, or for the end of its transaction"""
GIVEN_BACK = (RETRY_PREFIX, DLQ_PREFIX)
TOPICS_MAX = 500
"""number of topics in which an id is looked up without ``-t``: one request for each and broker"""


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
    looked: list[str]
    """where they were looked for, as texts"""


async def find_places(admin: Admin, word: str, topic: str | None) -> MessagePlaces:
    """Look for an offset id, a unique id or, in a topic, a key.

    Raises: UsageError if there are too many topics to look for an id in all of them; TrioMQError
        if no broker answered.
    """
    brokers = await admin.leaders()
    looked: list[str] = []
    found = await _at_offset(admin, word)
    if found is not None:
        looked.append(f"the log of {found.broker}")
        word = found.message.properties.get(UNIQ_KEY, "")
        real = found.message.properties.get(REAL_TOPIC, found.message.topic)
        topic = real if found.message.topic in WAITING_TOPICS else found.message.topic
    topics = [topic] if topic is not None else await _all_topics(admin)
    wanted = [*topics, *(one for one in WAITING_TOPICS if one not in topics)]
    failures: dict[str, str] = {}
    copies: list[StoredCopy] = []
    if word:
        answers = await copies_of(admin, brokers, wanted, word)
        if not any(answers.values.values()) and topic is not None:
            answers = await copies_of(admin, brokers, wanted, word, unique=False)
            looked.append(f"ids and keys of topic {topic} at {', '.join(brokers)}")
        else:
            where = f"topic {topic}" if topic is not None else f"{len(topics)} topics"
            looked.append(f"ids of {where} at {', '.join(brokers)}")
        looked.append("delayed messages and prepared transactions")
        if found is None:
            answers.some()  # raises if no broker answered
        failures = answers.reasons()
        copies = [copy for some in answers.values.values() for copy in some]
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
        looked=looked,
    )


async def copies_of(
    admin: Admin,
    brokers: Mapping[str, str],
    topics: Iterable[str],
    key: str,
    *,
    unique: bool = True,
) -> Answers[list[StoredCopy]]:
    """Return the records of some topics with an id or key, by broker name."""
    names = list(topics)

    async def at_broker(broker: str) -> list[StoredCopy]:
        answers = await admin.for_each(
            names, lambda topic: _query(admin, brokers[broker], topic, key, unique=unique)
        )
        for topic, error in answers.failures.items():
            # Rights may be missing for the topics of brokers.
            if topic not in WAITING_TOPICS or not isinstance(error, BrokerError):
                raise error
        return [StoredCopy(broker, message) for some in answers.values.values() for message in some]

    return await admin.for_each(brokers, at_broker)


async def _query(
    admin: Admin, address: str, topic: str, key: str, *, unique: bool
) -> list[StoredMessage]:
    header = QueryMessageHeader(
        topic=topic,
        key=key,
        count_max=UNIQUE_COUNT_MAX,
        begin_timestamp=0,
        end_timestamp=messages.FAR_FUTURE_MS,
        unique_key=unique,
    )
    try:
        found = messages.records(await admin.ask(address, RequestCode.QUERY_MESSAGE, header))
    except OffsetNotFound:
        return []  # the broker's answer when its index has no such key
    return [
        message
        for message in found  # the index compares hashes only
        if message.topic == topic
        and (message.properties.get(UNIQ_KEY) == key if unique else key in message.keys)
    ]


async def _at_offset(admin: Admin, word: str) -> StoredCopy | None:
    """Return the record that an offset id names, None for other ids."""
    place = parse_offset_id(word)
    names = {broker.address: broker.name for broker in await admin.brokers()}
    # A unique id has the length of an offset id; only a broker's address tells the difference.
    if place is None or place[0] not in names:
        return None
    try:
        message = await admin.message_at(*place)
    except TrioMQError:
        return None  # the look-up by unique id asks that broker, too, and names it
    return None if message is None else StoredCopy(names[place[0]], message)


async def _all_topics(admin: Admin) -> list[str]:
    topics = [one for one in await admin.topics() if one not in (TRACE_TOPIC, OP_HALF_TOPIC)]
    if len(topics) > TOPICS_MAX:
        raise UsageError(
            f"-t/--topic is missing: there are {len(topics)} topics, and an id is looked up in at"
            f" most {TOPICS_MAX}; name the topic"
        )
    return topics


def _waits_for(copy: StoredCopy, topic: str | None) -> bool:
    """Return whether a record will get to a topic; None: to any but those of groups."""
    real = copy.message.properties.get(REAL_TOPIC, "")
    return not real.startswith(GIVEN_BACK) if topic is None else real == topic


def _same(one: StoredCopy, other: StoredCopy) -> bool:
    return (one.broker, one.message.log_offset) == (other.broker, other.message.log_offset)
