"""When dead letters were sent again: their brokers find the copies by the id of the message.

The copies say it for as long as they are stored, whether a console or ``mqadmin dlq resend`` sent
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers, all_of
from triomq.client.admin.explain.key_search import copies_of
from triomq.client.admin.resend.message_copy import RESENT_FROM, origin_topic
from triomq.client.core.errors import RouteNotFound
from triomq.remoting.protocol.message_properties import UNIQ_KEY
from triomq.remoting.protocol.names import RETRY_PREFIX
from triomq.remoting.protocol.record import StoredMessage

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def sent_again_ms(
    admin: Admin, group: str, letters: Sequence[StoredMessage]
) -> Answers[int | None]:
    """Return the store time of the newest copy of each dead letter of a group, None without one.

    A copy went to the group or to the topic of the message, after the group gave the message up.
    One request for each dead letter, topic and broker: for the rows of a page.

    Returns: by ``offset_message_id``; without those that have no id of a producer, which no index
    names. A failure: no copy was found, and a broker that may have one did not answer.
    """
    named = {
        letter.offset_message_id: letter for letter in letters if UNIQ_KEY in letter.properties
    }
    retry = RETRY_PREFIX + group
    brokers = {
        topic: await _brokers(admin, topic)
        for topic in {retry, *(origin_topic(letter) or retry for letter in named.values())}
    }

    async def newest_copy(place: str) -> int | None:
        letter = named[place]
        topics = (retry, origin_topic(letter) or retry)
        answers = await copies_of(
            admin,
            {name: at for topic in topics for name, at in brokers[topic].items()},
            dict.fromkeys(topics),
            letter.properties[UNIQ_KEY],
            lambda message: _is_copy(message, letter),
        )
        times = [copy.message.store_timestamp for some in answers.values.values() for copy in some]
        if not times:
            all_of(answers)  # raises if a broker did not answer
        return max(times, default=None)

    return await admin.for_each(named, newest_copy)


def _is_copy(message: StoredMessage, letter: StoredMessage) -> bool:
    """Tell whether a message is a copy of a dead letter, not a delivery of such a copy again."""
    return (
        message.properties.get(UNIQ_KEY) == letter.properties[UNIQ_KEY]
        and RESENT_FROM in message.properties
        and not message.reconsume_times
        and message.store_timestamp >= letter.store_timestamp
    )


async def _brokers(admin: Admin, topic: str) -> dict[str, str]:
    try:
        return await admin.topic_brokers(topic)
    except RouteNotFound:
        return {}
