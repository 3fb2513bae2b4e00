"""Settings that an admin may change while the broker runs (UPDATE_BROKER_CONFIG).

All others are fixed at the start.
"""

from __future__ import annotations

import attrs

from triomq.remoting.access.quotas import QUOTAS, Quota
from triomq.remoting.core.settings import LONG_MAX, flag, number, setting


@attrs.define(kw_only=True)
class LiveSettings:
    """One object, shared by all that read a setting; only the admin handler changes it.

    broker_permission: 4: clients may read, 2: write, 6: both
    auto_create_topics: a send to an unknown topic creates it
    auto_create_groups: an unknown consumer group is created when it first connects
    long_polling: hold a pull that finds nothing until a message comes
    short_polling_ms: how long such a pull is held when longPollingEnable is false (ms)
    notify_consumer_changes: tell the members of a group when one comes or goes
    server_side_reset: store a reset of a group's offsets here; false: tell only its connected
        members
    mixed_message_type: topics may have message.type=MIXED
    enforce_message_type: refuse messages that are not of their topic's message.type; false: only
        messages by gRPC are checked, as in RocketMQ 5
    reject_pull_consumers: refuse pulls of clients that are not connected members of a push
        consumer's group
    lite_pulls: answer the pulls of lite pull consumers
    property_filter: let groups filter by SQL92 over message properties
    accept_sends_from_ms: refuse sends until this time (ms since 1970)
    reject_transactions: refuse the halves of transactions
    transaction_timeout_ms: how long a half may be open before its producer group is asked about it
        (ms); a message may ask for more by its property CHECK_IMMUNITY_TIME_IN_SECONDS
    transaction_check_interval_ms: pause between two checks of the same transaction (ms)
    transaction_checks_max: checks of a transaction that stays undecided; then it is moved to
        TRANS_CHECK_MAX_TIME_TOPIC
    disable_slow_consumers: a group that is more than consumerFallbehindThreshold behind may not
        consume any more
    slow_consumer_bytes: a group that is farther behind (bytes of the log) is named in a warning
        every three minutes
    recalls: let senders recall messages with a time of delivery that is still to come
    recalls_when_read_only: let them do so as well while brokerPermission allows no writes
    quotas: most sends and reads a second: 'User:shop requests=100; Topic:orders messages=500
        bytes=1000000; Group:* requests=50'; a name with * is a prefix, and each name that it covers
        has its own; empty: none
    """

    broker_permission: int = number("brokerPermission", 6, low=0, high=7)
    auto_create_topics: bool = flag("autoCreateTopicEnable", True)
    auto_create_groups: bool = flag("autoCreateSubscriptionGroup", True)
    long_polling: bool = flag("longPollingEnable", True)
    short_polling_ms: int = number("shortPollingTimeMills", 1_000, low=0)
    notify_consumer_changes: bool = flag("notifyConsumerIdsChangedEnable", True)
    server_side_reset: bool = flag("useServerSideResetOffset", True)
    mixed_message_type: bool = flag("enableMixedMessageType", False)
    enforce_message_type: bool = flag("enforceMessageType", False, own=True)
    reject_pull_consumers: bool = flag("rejectPullConsumerEnable", False)
    lite_pulls: bool = flag("litePullMessageEnable", True)
    property_filter: bool = flag("enablePropertyFilter", False)
    accept_sends_from_ms: int = number("startAcceptSendRequestTimeStamp", 0, low=0, high=LONG_MAX)
    reject_transactions: bool = flag("rejectTransactionMessage", False)
    transaction_timeout_ms: int = number("transactionTimeOut", 6_000, low=1)
    transaction_check_interval_ms: int = number("transactionCheckInterval", 30_000, low=1)
    transaction_checks_max: int = number("transactionCheckMax", 15, low=0)
    disable_slow_consumers: bool = flag("disableConsumeIfConsumerReadSlowly", False)
    slow_consumer_bytes: int = number(
        "consumerFallbehindThreshold", 16 * 1024 * 1024 * 1024, high=LONG_MAX
    )

    recalls: bool = flag("recallMessageEnable", False)
    recalls_when_read_only: bool = flag("allowRecallWhenBrokerNotWriteable", True)
    quotas: tuple[Quota, ...] = setting("quotas", QUOTAS, (), default_text="empty", own=True)

    @property
    def readable(self) -> bool:
        return bool(self.broker_permission & 4)

    @property
    def writable(self) -> bool:
        return bool(self.broker_permission & 2)
