"""The settings of the service, under Java's names where its proxy has them.

Source: proxy/…/config/ProxyConfig.java.
"""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import flag, number

_HOUR_MS = 3_600_000


@attrs.frozen(kw_only=True)
class MessagingSettings:
    """Limits and times of calls and clients. Times: ms."""

    poll_ms_min: int = number(
        "grpcClientConsumerMinLongPollingTimeoutMillis",
        5_000,
        "the shortest time that a receive waits for a message",
        low=0,
        high=_HOUR_MS,
    )
    poll_ms_max: int = number(
        "grpcClientConsumerMaxLongPollingTimeoutMillis",
        20_000,
        "the longest time that a receive waits for a message",
        high=_HOUR_MS,
    )
    receive_messages_max: int = number(
        "grpcClientConsumerLongPollingBatchSize",
        32,
        "messages of one receive; a request for more gets as many",
        high=32,
    )
    invisible_ms_min: int = number(
        "minInvisibleTimeMillsForRecv",
        10_000,
        "the shortest time that a receive may hide messages",
        low=0,
    )
    invisible_ms_max: int = number(
        "maxInvisibleTimeMills",
        12 * _HOUR_MS,
        "the longest time that messages may be hidden",
    )
    renewed_ms: int = number(
        "defaultInvisibleTimeMills",
        60_000,
        "how long messages are hidden whose time the server renews",
    )
    renew: bool = flag(
        "enableProxyAutoRenew",
        True,
        "whether the server renews the time of messages that push consumers hold",
    )
    renew_ahead_ms: int = number(
        "renewAheadTimeMillis",
        10_000,
        "how long before its end the time of a message is renewed",
    )
    renew_period_ms: int = number(
        "renewSchedulePeriodMillis",
        5_000,
        "how often the server looks for times to renew",
    )
    renew_ms_max: int = number(
        "renewMaxTimeMillis",
        3 * _HOUR_MS,
        "how long the time of a message is renewed; then the message comes again",
    )
    clients_max: int = number(
        "grpcClientsMax",
        20_000,
        "clients, by their id, that the service knows; further ones are refused",
        high=10_000_000,
        own=True,
    )
    clients_per_address_max: int = number(
        "grpcClientsPerAddressMax",
        10_000,
        "clients, by their id, of one IP address; behind a load balancer without PROXY headers, or"
        " behind NAT, many clients have one",
        high=10_000_000,
        own=True,
    )
    clients_per_connection_max: int = number(
        "grpcClientsPerConnectionMax",
        1_000,
        "clients, by their id, of one connection; only proxies have several clients on one",
        high=10_000_000,
        own=True,
    )
    held_messages_max: int = number(
        "grpcHeldMessagesMax",
        1_000_000,
        "messages whose time the server renews; the time of further ones is not renewed",
        high=1_000_000_000,
        own=True,
    )
    client_idle_ms: int = number(
        "grpcClientExpiredMs",
        120_000,
        "a client that makes no call and has no stream for this time is forgotten",
        own=True,
    )
