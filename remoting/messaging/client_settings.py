"""The settings that the server gives a client, and when a failed message comes again. PURE.

Source: proxy/grpc/v2/common/GrpcClientSettingsManager.java; remoting/protocol/subscription/
GroupRetryPolicy.java, CustomizedRetryPolicy.java, ExponentialRetryPolicy.java.
"""

from __future__ import annotations

from datetime import timedelta

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.checks import BODY_BYTES_MAX
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.protocol.bodies.groups import (
    RETRY_DELAYS_MS,
    ExponentialRetryPolicy,
    SubscriptionGroupConfig,
)

SEND_ATTEMPTS_MAX = 3
"""grpcClientProducerMaxAttempts"""
SEND_BACKOFF_MS_MIN = 10
"""grpcClientProducerBackoffInitialMillis"""
SEND_BACKOFF_MS_MAX = 1000
"""grpcClientProducerBackoffMaxMillis"""
SEND_BACKOFF_FACTOR = 2
"""grpcClientProducerBackoffMultiplier"""
DELIVERY_RETRIES = 16
"""retryMaxTimes of a group without settings"""

_RETRIES_MAX = 0x7FFF_FFFE
_DURATION_MS_MAX = 315_576_000_000_000
"""10,000 years: the longest duration of protobuf"""
_EXPONENT_MAX = 32
_CUSTOMIZED_FROM = 2
"""The first delays of a customized policy are those of delay levels that no retry takes."""


def merged_settings(
    settings: pb.Settings, group: SubscriptionGroupConfig | None, own: MessagingSettings
) -> pb.Settings:
    """Return a client's settings with the server's values; what neither names stays as sent.

    ``own``: the settings of the service.

    ``group``: the settings of a consumer's group; None stands for the defaults.
    """
    merged = pb.Settings()
    merged.CopyFrom(settings)
    if merged.HasField("publishing"):
        merged.backoff_policy.CopyFrom(_send_policy())
        merged.publishing.max_body_size = BODY_BYTES_MAX
        merged.publishing.validate_message_type = True
    elif merged.HasField("subscription"):
        merged.backoff_policy.CopyFrom(_delivery_policy(group))
        subscription = merged.subscription
        subscription.fifo = group is not None and group.consume_message_orderly
        subscription.receive_batch_size = own.receive_messages_max
        subscription.long_polling_timeout.FromMilliseconds(own.poll_ms_max)
    merged.ClearField("metric")
    merged.metric.SetInParent()  # present, and off
    return merged


def delivery_attempts_max(group: SubscriptionGroupConfig | None) -> int:
    """Return how often a group gets a message before it is dead."""
    retries = DELIVERY_RETRIES if group is None else group.retry_max_times
    return min(max(retries, 0), _RETRIES_MAX) + 1


def retry_delay_ms(group: SubscriptionGroupConfig | None, reconsume_times: int) -> int:
    """Return how long after a failure a message comes again, by the policy of its group.

    ``reconsume_times``: earlier redeliveries of the message, 0 at its first failure.
    """
    times = max(reconsume_times, 0)
    exponential = _exponential(group)
    if exponential is None:
        delays = _customized(group)
        return max(delays[min(times + _CUSTOMIZED_FROM, len(delays) - 1)], 0)
    factor: int = max(exponential.multiplier, 1) ** min(times, _EXPONENT_MAX)
    return max(min(exponential.initial * factor, exponential.max), 0)


def _exponential(group: SubscriptionGroupConfig | None) -> ExponentialRetryPolicy | None:
    """Return the policy of a group with type EXPONENTIAL; None for another type."""
    if group is None or group.retry_policy.type != "EXPONENTIAL":
        return None
    return group.retry_policy.exponential or ExponentialRetryPolicy()


def _customized(group: SubscriptionGroupConfig | None) -> tuple[int, ...]:
    policy = None if group is None else group.retry_policy.customized
    # An empty list, which Java would not survive, says nothing.
    return tuple(policy.next) if policy is not None and policy.next else RETRY_DELAYS_MS


def _send_policy() -> pb.RetryPolicy:
    """Return how producers try again. Node's client accepts the exponential policy only."""
    return pb.RetryPolicy(
        max_attempts=SEND_ATTEMPTS_MAX,
        exponential_backoff=pb.ExponentialBackoff(
            initial=_duration(SEND_BACKOFF_MS_MIN),
            max=_duration(SEND_BACKOFF_MS_MAX),
            multiplier=SEND_BACKOFF_FACTOR,
        ),
    )


def _delivery_policy(group: SubscriptionGroupConfig | None) -> pb.RetryPolicy:
    attempts = delivery_attempts_max(group)
    exponential = _exponential(group)
    if exponential is not None:
        return pb.RetryPolicy(
            max_attempts=attempts,
            exponential_backoff=pb.ExponentialBackoff(
                initial=_duration(exponential.initial),
                max=_duration(exponential.max),
                multiplier=exponential.multiplier,
            ),
        )
    delays = [_duration(delay_ms) for delay_ms in _customized(group)]
    return pb.RetryPolicy(
        max_attempts=attempts, customized_backoff=pb.CustomizedBackoff(next=delays)
    )


def _duration(time_ms: int) -> timedelta:
    return timedelta(milliseconds=min(max(time_ms, 0), _DURATION_MS_MAX))
