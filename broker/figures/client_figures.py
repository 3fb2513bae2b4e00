"""Connected producers and consumers, under Java's names.

Source: broker/metrics/BrokerMetricsManager.java#initConnectionMetrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from triomq.broker.services.groups import GroupTable, Member
from triomq.broker.services.topics import Topics
from triomq.remoting.monitor.metrics import Family, Labels, Sample, family
from triomq.remoting.protocol.codes import LanguageCode, version_name
from triomq.remoting.server.connection import Connection

CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_LANGUAGES = {code.value: code.name.lower() for code in LanguageCode}


def client_figures(table: GroupTable[Connection], topics: Topics) -> Iterator[Family]:
    """Yield the connections by group, language and release."""
    producers = Counter(
        (member.language, member.version)
        for members in table.producers.values()
        for member in members.values()
    )
    yield family(
        "rocketmq_producer_connections",
        [
            Sample(count, _client_labels(language, version))
            for (language, version), count in producers.items()
        ],
    )
    groups = list(table.consumers.values())
    yield family(
        "rocketmq_consumer_connections",
        (
            Sample(
                count,
                {
                    "consumer_group": group.name,
                    "consume_mode": CONSUME_MODES.get(group.consume_type, "unknown"),
                    "is_system": "true" if topics.is_system_topic(group.name) else "false",
                    **_client_labels(*kind),
                },
            )
            for group in groups
            for kind, count in Counter(map(_kind, group.members.values())).items()
        ),
        size=len(groups),
    )
    yield family(
        "triomq_subscription_mismatch",
        [
            Sample(1, {"consumer_group": group.name})
            for group in groups
            if group.mismatch is not None
        ],
    )


def _kind(member: Member[Connection]) -> tuple[int, int]:
    return member.language, member.version


def _client_labels(language: int, version: int) -> Labels:
    return {
        "language": _LANGUAGES.get(language, "other"),
        "version": version_name(version).lower(),
        "protocol_type": "remoting",
    }
