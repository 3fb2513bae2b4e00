"""Settings that the server adds to those of a client, and the delays of retries."""

from __future__ import annotations

import pytest

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.client_settings import (
    delivery_attempts_max,
    merged_settings,
    retry_delay_ms,
)
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.protocol.bodies.groups import (
    RETRY_DELAYS_MS,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)

ACCESS_POINT = pb.Endpoints(
    scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host="192.0.2.7", port=8081)]
)

OWN = MessagingSettings()


def producer() -> pb.Settings:
    return pb.Settings(
        client_type=pb.ClientType.PRODUCER,
        access_point=ACCESS_POINT,
        publishing=pb.Publishing(topics=[pb.Resource(name="orders")], max_body_size=1),
        user_agent=pb.UA(language=pb.Language.NODE_JS, version="1.0.8"),
        metric=pb.Metric(on=True, endpoints=ACCESS_POINT),
    )


def consumer() -> pb.Settings:
    return pb.Settings(
        client_type=pb.ClientType.PUSH_CONSUMER,
        access_point=ACCESS_POINT,
        backoff_policy=pb.RetryPolicy(max_attempts=99),
        subscription=pb.Subscription(
            group=pb.Resource(name="g"),
            subscriptions=[
                pb.SubscriptionEntry(
                    topic=pb.Resource(name="orders"),
                    expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
                )
            ],
            fifo=True,
        ),
        user_agent=pb.UA(language=pb.Language.PYTHON, version="5.1.2"),
    )


def policy_group(policy: GroupRetryPolicy, retry_max_times: int = 16) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(
        group_name="g", retry_max_times=retry_max_times, retry_policy=policy
    )


def test_a_producer() -> None:
    settings = producer()
    merged = merged_settings(settings, None, OWN)
    expected = producer()
    expected.publishing.max_body_size = 4194304
    expected.publishing.validate_message_type = True
    expected.backoff_policy.max_attempts = 3
    backoff = expected.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(10)
    backoff.max.FromMilliseconds(1000)
    backoff.multiplier = 2
    expected.metric.Clear()
    expected.metric.on = False
    assert merged == expected
    assert merged.HasField("metric")
    assert settings == producer()  # what the client sent is unchanged


def test_a_consumer_of_a_group_without_settings() -> None:
    merged = merged_settings(consumer(), None, OWN)
    expected = consumer()
    subscription = expected.subscription
    subscription.fifo = False
    subscription.receive_batch_size = 32
    subscription.long_polling_timeout.seconds = 20
    expected.backoff_policy.max_attempts = 17
    for delay_ms in RETRY_DELAYS_MS:
        expected.backoff_policy.customized_backoff.next.add().FromMilliseconds(delay_ms)
    expected.metric.on = False
    assert merged == expected
    assert merged.subscription.HasField("fifo")


def test_a_consumer_in_order() -> None:
    group = SubscriptionGroupConfig(group_name="g", consume_message_orderly=True, retry_max_times=3)
    settings = consumer()
    settings.subscription.fifo = False
    merged = merged_settings(settings, group, OWN)
    assert merged.subscription.fifo
    assert merged.backoff_policy.max_attempts == 4


def test_an_exponential_policy() -> None:
    group = policy_group(
        GroupRetryPolicy("EXPONENTIAL", exponential=ExponentialRetryPolicy(2500, 60_000, 3))
    )
    policy = merged_settings(consumer(), group, OWN).backoff_policy
    assert policy.WhichOneof("strategy") == "exponential_backoff"
    backoff = policy.exponential_backoff
    times = backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds()
    assert (*times, backoff.multiplier) == (2500, 60_000, 3)


def test_limits_of_a_server() -> None:
    merged = merged_settings(
        consumer(), None, MessagingSettings(poll_ms_max=1500, receive_messages_max=5)
    )
    assert merged.subscription.long_polling_timeout.ToMilliseconds() == 1500
    assert merged.subscription.receive_batch_size == 5


def test_settings_of_neither_kind_stay() -> None:
    merged = merged_settings(pb.Settings(access_point=ACCESS_POINT), None, OWN)
    assert merged == pb.Settings(access_point=ACCESS_POINT, metric=pb.Metric())


@pytest.mark.parametrize(("retries", "attempts"), [(16, 17), (0, 1), (-1, 1), (2**40, 2**31 - 1)])
def test_attempts(retries: int, attempts: int) -> None:
    group = policy_group(GroupRetryPolicy(), retries)
    assert delivery_attempts_max(group) == attempts
    assert merged_settings(consumer(), group, OWN).backoff_policy.max_attempts == attempts


def test_delays_of_the_default_policy() -> None:
    for group in (None, policy_group(GroupRetryPolicy())):
        delays = [retry_delay_ms(group, times) for times in range(17)]
        assert delays[:3] == [10_000, 30_000, 60_000]
        assert delays[-2:] == [7_200_000, 7_200_000]
        assert retry_delay_ms(group, -1) == 10_000
        assert retry_delay_ms(group, 10**9) == 7_200_000


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        ([1, 2, 3, 4], [3, 4, 4]),
        ([7], [7, 7, 7]),
        ([1, 2, -5], [0, 0, 0]),
        ([], [10_000, 30_000, 60_000]),
    ],
)
def test_delays_of_a_customized_policy(delays: list[int], expected: list[int]) -> None:
    group = policy_group(GroupRetryPolicy(customized=CustomizedRetryPolicy(delays)))
    assert [retry_delay_ms(group, times) for times in range(3)] == expected


def test_delays_of_an_exponential_policy() -> None:
    group = policy_group(GroupRetryPolicy("EXPONENTIAL"))
    assert [retry_delay_ms(group, times) for times in range(4)] == [5000, 10_000, 20_000, 40_000]
    assert retry_delay_ms(group, -3) == 5000
    assert retry_delay_ms(group, 11) == 7_200_000
    # The power of such an exponent would take minutes.
    steep = policy_group(
        GroupRetryPolicy("EXPONENTIAL", exponential=ExponentialRetryPolicy(1, 7, 3))
    )
    assert retry_delay_ms(steep, 10**9) == 7


@pytest.mark.parametrize(
    "policy",
    [
        GroupRetryPolicy("EXPONENTIAL", exponential=ExponentialRetryPolicy(-1, 2**62, 2**31)),
        GroupRetryPolicy(customized=CustomizedRetryPolicy([2**62, -(2**62)])),
        GroupRetryPolicy("NONSENSE"),
    ],
)
def test_odd_policies_make_settings_that_clients_can_read(policy: GroupRetryPolicy) -> None:
    group = policy_group(policy)
    merged = merged_settings(consumer(), group, OWN)
    assert pb.Settings.FromString(merged.SerializeToString()) == merged
    assert retry_delay_ms(group, 5) >= 0
