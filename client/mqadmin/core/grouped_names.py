"""The grouped names of commands, ``topic list`` beside RocketMQ's ``topicList``; see ``NAMES``.

Names of commands that do not exist (yet) in ``command_list.py`` have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq.client.mqadmin.core.command_list import LIST

DECLARED: Mapping[str, Mapping[str, str]] = {
    "cluster": {
        "list": "clusterList",
        "latency": "clusterRT",
        "export-config": "exportConfigs",
        "export-metrics": "exportMetrics",
        "export-metadata": "exportMetadata",
        "export": "clusterExport",
        "diff": "clusterDiff",
        "apply": "clusterApply",
        "import": "clusterImport",
    },
    "broker": {
        "status": "brokerStatus",
        "config": "getBrokerConfig",
        "set": "updateBrokerConfig",
        "drain": "brokerDrain",
        "undrain": "brokerUndrain",
        "forget": "brokerForget",
        "wipe-write": "wipeWritePerm",
        "add-write": "addWritePerm",
        "lag": "brokerConsumeStats",
        "producers": "producer",
        "latency": "sendMsgStatus",
        "replication": "haStatus",
        "set-flush-offset": "resetMasterFlushOffset",
        "epochs": "getBrokerEpoch",
        "delete-expired-log": "deleteExpiredCommitLog",
        "delete-expired-queues": "cleanExpiredCQ",
        "delete-unused-topics": "cleanUnusedTopic",
        "cold-reads": "getColdDataFlowCtrInfo",
        "read-ahead": "setCommitLogReadAheadMode",
        "export-pop-records": "exportPopRecord",
        "export-rocksdb-config": "rocksDBConfigToJson",
        "check-rocksdb-queues": "checkRocksdbCqWriteProgress",
        "add": "addBroker",
        "remove": "removeBroker",
    },
    "nameserver": {
        "config": "getNamesrvConfig",
        "set": "updateNamesrvConfig",
        "set-value": "updateKvConfig",
        "delete-value": "deleteKvConfig",
    },
    "controller": {
        "status": "getControllerMetaData",
        "config": "getControllerConfig",
        "set": "updateControllerConfig",
        "elect": "electMaster",
        "in-sync": "getSyncStateSet",
        "delete-broker": "cleanBrokerMetadata",
    },
    "topic": {
        "list": "topicList",
        "create": "updateTopic",
        "update": "updateTopic",
        "delete": "deleteTopic",
        "route": "topicRoute",
        "status": "topicStatus",
        "stats": "statsAll",
        "clusters": "topicClusterList",
        "permission": "updateTopicPerm",
        "order": "updateOrderConf",
        "import": "updateTopicList",
        "latency": "checkMsgSendRT",
        "allocate": "allocateMQ",
        "update-static": "updateStaticTopic",
        "remap-static": "remappingStaticTopic",
        "tail": "topicTail",
    },
    "group": {
        "lag": "consumerProgress",
        "members": "consumerConnection",
        "status": "consumerStatus",
        "config": "getConsumerConfig",
        "create": "updateSubGroup",
        "update": "updateSubGroup",
        "delete": "deleteSubGroup",
        "reset": "resetOffsetByTime",
        "skip": "skipAccumulatedMessage",
        "clone": "cloneGroupOffset",
        "mode": "setConsumeMode",
        "import": "updateSubGroupList",
        "monitor": "startMonitoring",
        "why": "groupWhy",
        "limit-cold-reads": "updateColdDataFlowCtrGroupConfig",
        "unlimit-cold-reads": "removeColdDataFlowCtrGroupConfig",
    },
    "producer": {
        "members": "producerConnection",
        "list": "producer",
    },
    "message": {
        "find": "queryMsgByKey",
        "show": "queryMsgById",
        "show-unique": "queryMsgByUniqueKey",
        "at": "queryMsgByOffset",
        "trace": "queryMsgTraceById",
        "explain": "messageExplain",
        "replay": "messageReplay",
        "send": "sendMessage",
        "read": "consumeMessage",
        "print": "printMsg",
        "print-queue": "printMsgByQueue",
        "index": "queryCq",
        "print-compaction-log": "dumpCompactionLog",
    },
    "dlq": {
        "list": "dlqList",
        "show": "dlqShow",
        "resend": "dlqResend",
        "purge": "dlqPurge",
    },
    "bench": {"send": "benchProducer", "consume": "benchConsumer"},
    "user": {
        "list": "listUser",
        "show": "getUser",
        "create": "createUser",
        "update": "updateUser",
        "delete": "deleteUser",
        "copy": "copyUser",
    },
    "acl": {
        "list": "listAcl",
        "show": "getAcl",
        "create": "createAcl",
        "update": "updateAcl",
        "delete": "deleteAcl",
        "copy": "copyAcl",
        "can": "can",
    },
    "security": {"init": "securityInit"},
    "tls": {"init": "tlsInit", "check": "tlsCheck"},
    "context": {
        "list": "contextList",
        "show": "contextShow",
        "set": "contextSet",
        "use": "contextUse",
        "delete": "contextDelete",
    },
}
"""group → verb → name in the list of commands; the documentation uses a command's first"""
VERBS: Mapping[str, Mapping[str, str]] = {
    group: known
    for group, verbs in DECLARED.items()
    if (known := {verb: name for verb, name in verbs.items() if name in LIST})
}
"""the same, of the commands that exist"""
_FIRST: dict[str, str] = {}
for _group, _verbs in VERBS.items():
    for _verb, _name in _verbs.items():
        _FIRST.setdefault(_name, f"{_group} {_verb}")


def title(name: str) -> str:
    """Return the name that the documentation uses: the grouped one, if there is one."""
    return _FIRST.get(name, name)


def overview_of(group: str) -> str:
    """Return the list of a group's commands."""
    verbs = VERBS[group]
    width = max(map(len, verbs))
    lines = [f"usage: mqadmin {group} COMMAND [options]", ""]
    lines += [f"  {verb:{width}}  {LIST[name].summary} ({name})" for verb, name in verbs.items()]
    return "\n".join([*lines, "", f"`mqadmin {group} COMMAND --help` describes a command."])
