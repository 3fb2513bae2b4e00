"""Commands of RocketMQ's mqadmin that this one does not have, each with the reason.

``mqadmin help NAME`` prints it, and a call fails with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.client.admin.arguments import UsageError


@attrs.frozen
class NotOffered:
    """Why commands do not apply, and what to do instead."""

    cause: str
    instead: str
    commands: tuple[str, ...]


REASONS = (
    NotOffered(
        "it is for broker containers, and a process of TrioMQ has one broker",
        "start and stop `mqbroker` processes",
        ("addBroker", "removeBroker"),
    ),
    NotOffered(
        "it is about RocksDB, which brokers of TrioMQ do not use",
        "`mqadmin exportMetadata` writes topics and groups to a file; read Java's RocksDB with"
        " RocketMQ's mqadmin",
        (
            *("checkRocksdbCqWriteProgress", "exportMetadataInRocksDB", "rocksDBConfigToJson"),
            "switchTimerEngine",
        ),
    ),
    NotOffered(
        "it is about lite topics, which brokers of TrioMQ do not have",
        "use ordinary topics; ask Java's brokers with RocketMQ's mqadmin",
        (
            *("getBrokerLiteInfo", "getParentTopicInfo", "getLiteTopicInfo", "getLiteClientInfo"),
            *("getLiteGroupInfo", "triggerLiteDispatch"),
        ),
    ),
    NotOffered(
        "it is about static topics, which brokers of TrioMQ do not have",
        "`mqadmin updateTopic` makes an ordinary topic; change Java's static topics with RocketMQ's"
        " mqadmin",
        ("updateStaticTopic", "remappingStaticTopic"),
    ),
    NotOffered(
        "it changes the accounts of RocketMQ 4 (plain_acl.yml), which 5.3 dropped",
        "`mqadmin createUser` and `mqadmin createAcl` are their successors; edit plain_acl.yml on"
        " brokers of 4.x, which read it again by themselves",
        (
            *("updateAclConfig", "deleteAclConfig", "getAclConfig", "clusterAclConfigVersion"),
            "updateGlobalWhiteAddr",
        ),
    ),
)
"""in the order of the manual"""

INAPPLICABLE: Mapping[str, NotOffered] = {
    name: reason for reason in REASONS for name in reason.commands
}
"""name of a command, as RocketMQ spells it → why it is not here"""


class CommandInapplicable(UsageError):
    """RocketMQ's mqadmin has this command, this one does not; nothing was done."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        """Give the reason, and what to do instead."""
        reason = INAPPLICABLE[self.name]
        return f"{self.name} does not apply: {reason.cause}; {reason.instead}"


def inapplicable(spelling: str) -> str | None:
    """Return RocketMQ's name of a command that is not here, None for any other word."""
    folded = spelling.lower().replace("-", "")
    return next((name for name in INAPPLICABLE if name.lower() == folded), None)
