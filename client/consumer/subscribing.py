"""Subscriptions as users write them, and as heartbeats and pulls carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from triomq.client.arguments import shown
from triomq.client.errors import ConnectionFailed, ConnectionLost, RequestTimeout, SettingsError
from triomq.client.names import check_topic
from triomq.client.refusals import BrokerFailed
from triomq.client.session import Session
from triomq.remoting.protocol.bodies.heartbeat import TAG, CheckClientBody, SubscriptionData
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.message import subscription

CHECK_SECONDS = 3.0
SQL92 = "SQL92"
_NO_FILTERS = "does not support consumer to filter"
"""what a broker without property filters says; its code is that of any fault (ClientManageProcessor#checkClientConfig)"""


@attrs.frozen
class Sql:
    """Messages whose properties fulfil an SQL92 expression: `Sql("Region = 'Hangzhou' AND price > 30")`.

    Brokers evaluate it, and must have `enablePropertyFilter=true`.
    """

    expression: str


Subscriptions = str | Iterable[str] | Mapping[str, str | Sql]
"""One topic, several topics, or topic → tag expression (`"paid || refunded"`, `"*"`) or `Sql`."""


def make_subscriptions(wanted: Subscriptions, version: int) -> dict[str, SubscriptionData]:
    """Turn what the user wrote into topic → subscription.

    Errors: `TopicInvalid`; `SettingsError` for an empty expression, or one that is no text.
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
            f"subscriptions must be a topic, a list of topics or a dict of topic → tags, not {shown(wanted)}: "
            "write 'Orders', ['Orders', 'Offers'] or {'Orders': 'paid || refunded'}"
        )
    made = {}
    for topic, expression in pairs:
        check_topic(topic)
        if isinstance(expression, Sql):
            if not isinstance(expression.expression, str):
                raise SettingsError(f"subscription to {topic}: an SQL expression must be a text, not {shown(expression.expression)}")
            if not expression.expression.strip():
                raise SettingsError(f"subscription to {topic}: the SQL expression is empty; write TRUE for all messages")
            made[topic] = SubscriptionData(topic=topic, sub_string=expression.expression, sub_version=version, expression_type=SQL92)
            continue
        if expression is not None and not isinstance(expression, str):
            raise SettingsError(
                f"subscription to {topic}: {shown(expression)} is no tag expression; write 'TagA || TagB', '*' for all, or Sql(…)"
            )
        if expression and not any(tag.strip() for tag in expression.split("||")):
            raise SettingsError(
                f"subscription to {topic}: {expression!r} names no tag; write '*' for all, or 'TagA || TagB'"
            )
        made[topic] = subscription(topic, expression or "*", version)
    return made


async def check_filters(session: Session, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
    """Ask the topics' brokers whether they filter so: a pull that is refused would only be logged.

    Errors: `SubscriptionInvalid` for a wrong expression, `SettingsError` if property filters are switched off, `BrokerError` for any other
    refusal.  A broker that is away is not asked.
    """
    for wanted in subscriptions:
        if wanted.expression_type == TAG:
            continue
        body = CheckClientBody(client_id=session.client_id, group=group, subscription=wanted).encode()
        found = await session.subscribe_queues(wanted.topic)
        for broker_name in found.brokers if found is not None else ():
            address = session.routes.master(broker_name)
            if address is None:
                continue
            try:
                await session.call(address, request(RequestCode.CHECK_CLIENT_CONFIG, body=body), CHECK_SECONDS)
            except (ConnectionFailed, ConnectionLost, RequestTimeout):
                continue
            except BrokerFailed as error:
                if _NO_FILTERS not in error.remark:
                    raise
                raise SettingsError(
                    f"subscription to {wanted.topic}: {broker_name} does not filter by properties ({error.remark}): switch it on there "
                    "(mqadmin updateBrokerConfig -k enablePropertyFilter -v true), or use tags"
                ) from error
