"""The settings of the service, under Java's names where its proxy has them.

Source: proxy/…/config/ProxyConfig.java.
"""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import flag, number

_HOUR_MS = 3_600_000


@attrs.frozen(kw_only=True)
class MessagingSettings:
    """Limits and times of calls and clients. Times: ms.

    poll_ms_min: the shortest time that a receive waits for a message
    poll_ms_max: the longest time that a receive waits for a message
    receive_messages_max: messages of one receive; a request for more gets as many
    invisible_ms_min: the shortest time that a receive may hide messages
    invisible_ms_max: the longest time that messages may be hidden
    renewed_ms: how long messages are hidden whose time the server renews
    renew: whether the server renews the time of messages that push consumers hold
    renew_ahead_ms: how long before its end the time of a message is renewed
    renew_period_ms: how often the server looks for times to renew
    renew_ms_max: how long the time of a message is renewed; then the message comes again
    clients_max: clients, by their id, that the service knows; further ones are refused
    clients_per_address_max: clients, by their id, of one IP address; behind a load balancer without
        PROXY headers, or behind NAT, many clients have one
    clients_per_connection_max: clients, by their id, of one connection; only proxies have several
        clients on one
    held_messages_max: messages whose time the server renews; the time of further ones is not
        renewed
    client_idle_ms: a client that makes no call and has no stream for this time is forgotten
    """

    poll_ms_min: int = number(
        "grpcClientConsumerMinLongPollingTimeoutMillis", 5_000, low=0, high=_HOUR_MS
    )
    poll_ms_max: int = number(
        "grpcClientConsumerMaxLongPollingTimeoutMillis", 20_000, high=_HOUR_MS
    )
    receive_messages_max: int = number("grpcClientConsumerLongPollingBatchSize", 32, high=32)
    invisible_ms_min: int = number("minInvisibleTimeMillsForRecv", 10_000, low=0)
    invisible_ms_max: int = number("maxInvisibleTimeMills", 12 * _HOUR_MS)
    renewed_ms: int = number("defaultInvisibleTimeMills", 60_000)
    renew: bool = flag("enableProxyAutoRenew", True)
    renew_ahead_ms: int = number("renewAheadTimeMillis", 10_000)
    renew_period_ms: int = number("renewSchedulePeriodMillis", 5_000)
    renew_ms_max: int = number("renewMaxTimeMillis", 3 * _HOUR_MS)
    clients_max: int = number("grpcClientsMax", 20_000, high=10_000_000, own=True)
    clients_per_address_max: int = number(
        "grpcClientsPerAddressMax", 10_000, high=10_000_000, own=True
    )
    clients_per_connection_max: int = number(
        "grpcClientsPerConnectionMax", 1_000, high=10_000_000, own=True
    )
    held_messages_max: int = number("grpcHeldMessagesMax", 1_000_000, high=1_000_000_000, own=True)
    client_idle_ms: int = number("grpcClientExpiredMs", 120_000, own=True)
