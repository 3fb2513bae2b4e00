"""The list of mqadmin's commands: the module of each, and its line in help and manual.

This module imports no command: start-up is most of a command's time. A new command is a line here
and an ``AdminCommand`` in the ``COMMANDS`` of its module; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

GROUPS = ("cluster", "topic", "consumer", "producer", "message", "security", "context", "shell")
"""sections of the list, in order"""


class Listed(NamedTuple):
    """A line of the list of commands."""

    module: str
    """name in the package ``commands``"""
    group: str
    """one of ``GROUPS``"""
    summary: str


LIST: Mapping[str, Listed] = {
    "clusterList": Listed(
        "cluster", "cluster", "list clusters and their brokers, with load and health"
    ),
    "brokerStatus": Listed("cluster", "cluster", "print the runtime counters of brokers"),
    "top": Listed(
        "top",
        "cluster",
        "watch servers, topics and groups in the terminal, with rates, lag and latencies",
    ),
    "doctor": Listed(
        "doctor",
        "cluster",
        "look for known problems on this machine (limits, memory, disk, clock, ports, Python) and"
        " in the cluster, with their fixes",
    ),
    "topicList": Listed("topic", "topic", "list the topics"),
    "topicRoute": Listed("topic", "topic", "print the brokers and queues of a topic"),
    "topicStatus": Listed(
        "topic", "topic", "print the first and next offset of each queue of a topic"
    ),
    "updateTopic": Listed("topic", "topic", "create a topic, or change it"),
    "deleteTopic": Listed("topic", "topic", "delete a topic"),
    "topicTail": Listed("tail", "topic", "show the messages of a topic as they come, until Ctrl-C"),
    "consumerProgress": Listed(
        "progress", "consumer", "print the lag of consumer groups, per queue or per group"
    ),
    "consumerConnection": Listed(
        "connection", "consumer", "print the members of a consumer group and their subscriptions"
    ),
    "updateSubGroup": Listed("connection", "consumer", "create a consumer group, or change it"),
    "producerConnection": Listed("connection", "producer", "print the members of a producer group"),
    "sendMessage": Listed("send", "message", "send one message"),
    "consumeMessage": Listed(
        "message", "message", "print stored messages, without moving any group's offset"
    ),
    "queryMsgByKey": Listed("query", "message", "find messages by a key"),
    "queryMsgById": Listed("query", "message", "find messages by id"),
    "queryMsgByUniqueKey": Listed(
        "query", "message", "find messages by the id that their producer gave them"
    ),
    "queryMsgTraceById": Listed(
        "trace",
        "message",
        "print what happened to a message: sent by which producer, handled by which group, and how",
    ),
    "messageExplain": Listed(
        "explain",
        "message",
        "tell where a message is, which groups consumed it and when, and why others did not",
    ),
    "messageReplay": Listed(
        "replay", "message", "send the messages of a time range again, to the same or another topic"
    ),
    "dlqList": Listed(
        "dead_letters", "message", "list the groups with dead letters: how many, and since when"
    ),
    "dlqShow": Listed(
        "dead_letters", "message", "print the dead letters of a group, and where they came from"
    ),
    "dlqResend": Listed("dead_letters", "message", "send dead letters of a group again"),
    "dlqPurge": Listed("dead_letters", "message", "delete all dead letters of a group"),
    "groupWhy": Listed(
        "group_why",
        "consumer",
        "tell what holds a consumer group back, with figures and fixes",
    ),
    "deleteSubGroup": Listed("group", "consumer", "delete a consumer group's settings"),
    "getConsumerConfig": Listed(
        "group", "consumer", "print a consumer group's settings at every broker"
    ),
    "setConsumeMode": Listed(
        "group", "consumer", "let a consumer group read a topic by pulls, or by pops"
    ),
    "brokerConsumeStats": Listed("rates", "consumer", "print the lag of all groups of a broker"),
    "consumerStatus": Listed(
        "consumer_status", "consumer", "print the state of the members of a group"
    ),
    "statsAll": Listed("rates", "topic", "print rates and backlog of all topics and their groups"),
    "producer": Listed("group", "producer", "print all producers that are connected to a broker"),
    "topicClusterList": Listed("group", "topic", "print the clusters that have a topic"),
    "resetOffsetByTime": Listed(
        "offset",
        "consumer",
        "move a group to a time, or one queue to an offset",
    ),
    "skipAccumulatedMessage": Listed("offset", "consumer", "move a group to the end of all queues"),
    "cloneGroupOffset": Listed(
        "offset", "consumer", "copy the offsets of a group to another group"
    ),
    "clusterExport": Listed(
        "cluster_file",
        "cluster",
        "write topics, groups, users, rules and offsets of a cluster as one file",
    ),
    "clusterDiff": Listed(
        "cluster_file", "cluster", "print how a cluster differs from a cluster file"
    ),
    "clusterApply": Listed(
        "cluster_file", "cluster", "make a cluster as a cluster file says, but for offsets"
    ),
    "clusterImport": Listed(
        "cluster_file", "cluster", "make a cluster as a cluster file says, with offsets of groups"
    ),
    "brokerDrain": Listed(
        "drain", "cluster", "stop writes to a broker, and wait until its messages are read"
    ),
    "brokerUndrain": Listed("drain", "cluster", "give a drained broker back to its clients"),
    "brokerForget": Listed("drain", "cluster", "stop counting a broker as missing"),
    "wipeWritePerm": Listed(
        "permission",
        "cluster",
        "stop producers of a broker: its topics lose the write permission in all routes",
    ),
    "addWritePerm": Listed(
        "permission",
        "cluster",
        "admit producers again: the topics of a broker get permission 6 in all routes",
    ),
    "updateTopicPerm": Listed("permission", "topic", "change the permission of a topic"),
    "getBrokerConfig": Listed("settings", "cluster", "print the effective settings of brokers"),
    "updateBrokerConfig": Listed("settings", "cluster", "change a setting of running brokers"),
    "getNamesrvConfig": Listed("settings", "cluster", "print the settings of all name servers"),
    "updateNamesrvConfig": Listed(
        "settings", "cluster", "change a setting of all running name servers"
    ),
    "updateKvConfig": Listed(
        "settings", "cluster", "store a value in the name servers' key-value table"
    ),
    "deleteKvConfig": Listed(
        "settings", "cluster", "remove a value from the name servers' key-value table"
    ),
    "updateOrderConf": Listed(
        "settings",
        "topic",
        "store, print or remove the queue count of each broker of an ordered topic",
    ),
    "updateTopicList": Listed("bulk", "topic", "create or replace topics from a file"),
    "updateSubGroupList": Listed(
        "bulk", "consumer", "create or replace consumer groups from a file"
    ),
    "queryCq": Listed("bulk", "message", "print entries of a queue's index at the brokers"),
    "deleteExpiredCommitLog": Listed(
        "cleaning", "cluster", "make brokers delete expired commit log files now"
    ),
    "cleanExpiredCQ": Listed("cleaning", "cluster", "make brokers delete queues without messages"),
    "cleanUnusedTopic": Listed(
        "cleaning", "topic", "make brokers delete the queues of topics that do not exist any more"
    ),
    "printMsg": Listed("reading", "message", "print the messages of a topic, queue by queue"),
    "printMsgByQueue": Listed(
        "reading", "message", "print the messages of one queue, or count them by tag"
    ),
    "queryMsgByOffset": Listed("reading", "message", "print the message at an offset of a queue"),
    "dumpCompactionLog": Listed(
        "compaction_log", "message", "print the messages in a file of a compaction log"
    ),
    "checkMsgSendRT": Listed(
        "probes", "message", "send messages to a topic, and print how long each takes"
    ),
    "sendMsgStatus": Listed(
        "probes", "message", "send messages to a broker, and print how long each takes"
    ),
    "clusterRT": Listed(
        "probes",
        "cluster",
        "send messages to all brokers again and again, and print how long they take",
    ),
    "haStatus": Listed("replication", "cluster", "print how far slaves are behind their masters"),
    "resetMasterFlushOffset": Listed(
        "replication", "cluster", "tell a slave how far its master has flushed"
    ),
    "allocateMQ": Listed(
        "distribution", "topic", "print which queues each member of a group would get"
    ),
    "startMonitoring": Listed(
        "monitoring", "consumer", "look at all consumer groups again and again, and print findings"
    ),
    "exportMetadata": Listed("exports", "cluster", "write topics and groups to a file"),
    "exportConfigs": Listed(
        "exports", "cluster", "write the most important settings of brokers to a file"
    ),
    "exportMetrics": Listed("figures", "cluster", "write the figures of a cluster to a file"),
    "exportPopRecord": Listed(
        "exports", "cluster", "make brokers write their POP records from RocksDB to the log"
    ),
    "getColdDataFlowCtrInfo": Listed(
        "cold", "cluster", "print how much each group reads from disk, and its limit"
    ),
    "updateColdDataFlowCtrGroupConfig": Listed(
        "cold", "consumer", "limit how much a group may read from disk"
    ),
    "removeColdDataFlowCtrGroupConfig": Listed(
        "cold", "consumer", "remove a group's limit of reads from disk"
    ),
    "setCommitLogReadAheadMode": Listed(
        "cold", "cluster", "choose how brokers read their commit log ahead"
    ),
    "benchProducer": Listed(
        "bench", "message", "send load to a topic, and print rates and percentiles of latency"
    ),
    "benchConsumer": Listed(
        "bench", "message", "consume load, and print rates and end-to-end latency"
    ),
    "createUser": Listed("users", "security", "create a user"),
    "updateUser": Listed("users", "security", "change password, type or status of a user"),
    "deleteUser": Listed("users", "security", "delete a user"),
    "getUser": Listed("users", "security", "print a user"),
    "listUser": Listed("users", "security", "print the users"),
    "copyUser": Listed("users", "security", "copy users from one broker to another"),
    "createAcl": Listed("acl", "security", "give rights to a user, or take them away"),
    "updateAcl": Listed("acl", "security", "change rights of a user"),
    "deleteAcl": Listed("acl", "security", "delete rules about a user's rights"),
    "getAcl": Listed("acl", "security", "print the rights of a user"),
    "listAcl": Listed("acl", "security", "print the rights of all users"),
    "can": Listed(
        "can", "security", "tell whether a user may do something, and which rule decides"
    ),
    "copyAcl": Listed("acl", "security", "copy the rights of users from one broker to another"),
    "securityInit": Listed(
        "security",
        "security",
        "make certificates, an administrator, and settings of all servers that use them",
    ),
    "tlsInit": Listed(
        "tls",
        "security",
        "make a development authority, certificates for servers and clients, and a tls.properties"
        " file",
    ),
    "tlsCheck": Listed(
        "tls",
        "security",
        "check the certificates of a tls.properties file (dates, key, chain, names), and the"
        " handshake with a server",
    ),
    "contextList": Listed("context", "context", "list the contexts"),
    "contextShow": Listed("context", "context", "print a context, without its secret key"),
    "contextSet": Listed("context", "context", "create a context, or change it"),
    "contextUse": Listed("context", "context", "make a context the current one"),
    "contextDelete": Listed("context", "context", "delete a context"),
    "completion": Listed("shell", "shell", "print the script that completes mqadmin in a shell"),
}
"""name → line of the list, in the order of help and manual"""


def kebab(name: str) -> str:
    """Return ``topicList`` as ``topic-list``."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


NAMES: Mapping[str, str] = {
    spelling.lower(): name for name in LIST for spelling in (name, kebab(name))
}
"""lower-case name or kebab-case alias → name"""
