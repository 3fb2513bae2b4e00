"""Tag expressions (``A || B``) and the subscriptions that heartbeats carry.

Source: remoting/…/protocol/filter/FilterAPI.java.
"""

from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.bodies.heartbeat import TAG, SubscriptionData
from triomq.remoting.protocol.java_hash import tags_code

ALL_TAGS = "*"


def subscription(topic: str, expression: str | None, version: int) -> SubscriptionData:
    """Return the subscription that a tag expression stands for.

    `expression`: ``A || B``; ``*``, empty or None for all messages.
    `version`: the time of the subscription in ms.

    Raises: LocalProtocolError if the expression names no tag.
    """
    if not expression or expression.strip() == ALL_TAGS:
        return SubscriptionData(topic=topic, sub_string=ALL_TAGS, sub_version=version)
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    if not tags:
        raise LocalProtocolError(
            f"the expression {expression!r} names no tag; write for example 'A || B' or '*'"
        )
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags=tags,
        codes=frozenset(tags_code(tag) for tag in tags),
        sub_version=version,
        expression_type=TAG,
    )
