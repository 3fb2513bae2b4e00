"""Which module has which command.  A command's module is imported when the command is asked for: start-up is most of a command's time.

A new command is a `Command` in the `COMMANDS` of its module, and its name here; a test compares the two.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from triomq.client.admin.command import Command, kebab

MODULES: Mapping[str, Sequence[str]] = {
    "cluster": ("clusterList", "brokerStatus"),
    "doctor": ("doctor",),
    "topic": ("topicList", "topicRoute", "topicStatus", "updateTopic", "deleteTopic"),
    "progress": ("consumerProgress",),
    "connection": ("consumerConnection", "updateSubGroup", "producerConnection"),
    "send": ("sendMessage",),
    "message": ("consumeMessage",),
    "query": ("queryMsgByKey", "queryMsgById", "queryMsgByUniqueKey"),
    "group": ("deleteSubGroup", "getConsumerConfig", "brokerConsumeStats", "consumerStatus", "statsAll", "producer", "topicClusterList"),
    "offset": ("resetOffsetByTime", "skipAccumulatedMessage", "cloneGroupOffset"),
    "permission": ("wipeWritePerm", "addWritePerm", "updateTopicPerm"),
    "settings": (
        *("getBrokerConfig", "updateBrokerConfig", "getNamesrvConfig", "updateNamesrvConfig"),
        *("updateKvConfig", "deleteKvConfig", "updateOrderConf"),
    ),
    "bulk": ("updateTopicList", "updateSubGroupList", "queryCq"),
    "cleaning": ("deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"),
    "tls": ("tlsInit", "tlsCheck"),
}
"""module → its commands, in the order of help and manual"""

NAMES: Mapping[str, tuple[str, str]] = {
    spelling.lower(): (module, name)
    for module, names in MODULES.items()
    for name in names
    for spelling in (name, kebab(name))
}
"""lower-case name or kebab-case alias → module and name"""


def load(name: str) -> Command | None:
    """Return the command of that name or alias, in any case; None if there is none."""
    module, wanted = NAMES.get(name.lower(), ("", ""))
    return next((command for command in commands_of(module) if command.name == wanted), None) if module else None


def commands_of(module: str) -> Sequence[Command]:
    """Return the commands of one module."""
    commands: Sequence[Command] = importlib.import_module(f"{__name__}.{module}").COMMANDS
    return commands


def all_commands() -> list[Command]:
    """Return all commands."""
    return [command for module in MODULES for command in commands_of(module)]
