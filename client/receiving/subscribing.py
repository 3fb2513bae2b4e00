"""Subscriptions: as users write them, and as heartbeats and pulls carry them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import attrs

from triomq.client.core.arguments import shown
from triomq.client.core.broker_errors import BrokerFailed
from triomq.client.core.errors import (
    ConnectionFailed,
    ConnectionLost,
    RequestTimeout,
    SettingsError,
)
from triomq.client.core.names import check_topic
from triomq.client.core.session import Session
from triomq.remoting.protocol.bodies.heartbeat import TAG, CheckClientBody, SubscriptionData
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.consuming.tag_expressions import subscription

CHECK_SECONDS = 3.0
SQL92 = "SQL92"
_NO_FILTERS = "does not support consumer to filter"
"""Text of the refusal of a broker without property filters; its code is SYSTEM_ERROR
(ClientManageProcessor#checkClientConfig).
"""


@attrs.frozen
class Sql:
    """Selects messages whose properties match an SQL92 expression.

    Example: ``Sql("Region = 'Hangzhou' AND price > 30")``. Brokers evaluate it; they need
    ``enablePropertyFilter=true``.
    """

    expression: str


Subscriptions = str | Iterable[str] | Mapping[str, str | Sql]
"""One topic, several, or topic → tag expression (``"paid || refunded"``, ``"*"``) or ``Sql``."""


def make_subscriptions(
    wanted: Subscriptions, known: Iterable[SubscriptionData] = ()
) -> dict[str, SubscriptionData]:
    """Return topic → subscription for what the user wrote.

    Its version is the time, and greater than those of the subscriptions that the consumer has, even
    if the clock went back: brokers ignore what is not newer.

    Raises: ``TopicInvalid``; ``SettingsError`` for an empty or wrong expression.
    """
    pairs: list[tuple[str, str | Sql]]
    if isinstance(wanted, str):
        pairs = [(wanted, "*")]
    elif isinstance(wanted, Mapping):
        pairs = list(wanted.items())
    elif isinstance(wanted, Iterable) and not isinstance(wanted, bytes | bytearray | memoryview):
        pairs = [(topic, "*") for topic in wanted]
    else:
        raise SettingsError(
            "subscriptions must be a topic, a list of topics or a dict of topic → tags, not"
            f" {shown(wanted)}: write 'Orders', ['Orders', 'Offers'] or {{'Orders': 'paid ||"
            " refunded'}"
        )
    newest = max((each.sub_version for each in known), default=0)
    version = max(time.time_ns() // 1_000_000, newest + 1)
    return {topic: _subscription(topic, expression, version) for topic, expression in pairs}


def _subscription(topic: str, expression: str | Sql | None, version: int) -> SubscriptionData:
    check_topic(topic)
    what = f"subscription to {topic}:"
    if isinstance(expression, Sql):
        sql = expression.expression
        if not isinstance(sql, str):
            raise SettingsError(f"{what} an SQL expression must be a text, not {shown(sql)}")
        if not sql.strip():
            raise SettingsError(f"{what} the SQL expression is empty; write TRUE for all messages")
        return SubscriptionData(
            topic=topic, sub_string=sql, sub_version=version, expression_type=SQL92
        )
    if expression is not None and not isinstance(expression, str):
        raise SettingsError(
            f"{what} {shown(expression)} is not a tag expression; write 'TagA || TagB', '*' for"
            " all, or Sql(…)"
        )
    if expression and not any(tag.strip() for tag in expression.split("||")):
        raise SettingsError(
            f"{what} {expression!r} names no tag; write '*' for all, or 'TagA || TagB'"
        )
    return subscription(topic, expression or "*", version)


async def check_filters(
    session: Session, group: str, subscriptions: Iterable[SubscriptionData]
) -> None:
    """Ask the topics' brokers whether they accept the filters; a refused pull would only be logged.

    A broker that cannot be reached is not asked.

    Raises: ``SubscriptionInvalid`` for a wrong expression; ``SettingsError`` if property filters
    are switched off; ``BrokerError`` for any other refusal.
    """
    for wanted in subscriptions:
        if wanted.expression_type == TAG:
            continue
        body = CheckClientBody(
            client_id=session.client_id, group=group, subscription=wanted
        ).encode()
        found = await session.finder.subscribe_queues(wanted.topic)
        for broker_name in found.brokers if found is not None else ():
            address = session.routes.master(broker_name)
            if address is None:
                continue
            try:
                await session.call(
                    address, request(RequestCode.CHECK_CLIENT_CONFIG, body=body), CHECK_SECONDS
                )
            except (ConnectionFailed, ConnectionLost, RequestTimeout):
                continue
            except BrokerFailed as error:
                if _NO_FILTERS not in error.remark:
                    raise
                raise SettingsError(
                    f"subscription to {wanted.topic}: {broker_name} does not filter by properties"
                    f" ({error.remark}): switch it on there (mqadmin broker set -k"
                    " enablePropertyFilter -v true), or use tags"
                ) from error
