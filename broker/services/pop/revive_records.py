"""Check points and acknowledgements as messages of the revive topic."""

from __future__ import annotations

from triomq.broker.store.core.draft import Draft
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    Ack,
    CheckPoint,
)
from triomq.remoting.protocol.message_properties import TAGS, UNIQ_KEY, properties_text
from triomq.remoting.protocol.names import SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX
from triomq.remoting.protocol.record import StoredMessage

REVIVE_GROUP = SYSTEM_GROUP_PREFIX + "REVIVE_GROUP"
"""The group whose offsets say how far the revive topic is done: the last record, not the next."""
POSITION_GROUP = SYSTEM_GROUP_PREFIX + "POP_POSITIONS"
"""Its offset of the topic of timers says which check points the table of offsets covers: those of
later messages a start must look at. Our own; it is saved and copied with the positions.
"""


def revive_topic(cluster: str) -> str:
    """Return the topic of check points and acknowledgements."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"


def revive_draft(
    record: CheckPoint | Ack, topic: str, queue_id: int, now_ms: int, host: bytes
) -> Draft:
    """Return the draft of a record for the revive topic, without its time of delivery."""
    tag = record.tag if isinstance(record, Ack) else CHECK_POINT_TAG
    unique_key = record.unique_key
    return Draft(
        topic,
        queue_id,
        record.encode(),
        properties_text({TAGS: tag, UNIQ_KEY: unique_key}).encode(),
        0,
        0,
        now_ms,
        host,
        0,
        tags=tag,
        unique_key=unique_key,
    )


def read_revive_record(message: StoredMessage) -> CheckPoint | Ack | None:
    """Return the record in a message of the revive topic; None if there is none."""
    try:
        if message.tag == CHECK_POINT_TAG:
            return CheckPoint.decode(message.body)
        if message.tag in (ACK_TAG, BATCH_ACK_TAG):
            return Ack.decode(message.body)
    except RemoteProtocolError:
        return None
    return None
