"""Commands of our mqadmin that RocketMQ's does not have."""

from __future__ import annotations

OWN_COMMANDS = {
    "benchConsumer",
    "benchProducer",
    "brokerDrain",
    "brokerForget",
    "brokerUndrain",
    "clusterApply",
    "clusterDiff",
    "clusterExport",
    "clusterImport",
    "completion",
    "contextDelete",
    "contextList",
    "contextSet",
    "contextShow",
    "contextUse",
    "dlqList",
    "dlqPurge",
    "dlqResend",
    "dlqShow",
    "doctor",
    "can",
    "groupWhy",
    "messageExplain",
    "messageReplay",
    "tlsCheck",
    "tlsInit",
    "top",
    "topicTail",
}
