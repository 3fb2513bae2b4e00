"""PoolSettings: workers, queue sizes and time limits of the pools, one for each family of requests.

A thread count of Java is a number of worker tasks here. The defaults are TrioMQ's own, since no
speed depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from triomq.remoting.core.settings import flag, number
from triomq.remoting.server.config import PoolConfig

_WORKERS_MAX = 1024
LIKE_ADMIN = ("lock", "offset", "disk", "change", "relay")
"""Their requests may wait as long as those of the pool admin."""


def _workers(java: str, default: int, what: str, *, own: bool = False) -> Any:
    return number(java, default, f"worker tasks for {what}", high=_WORKERS_MAX, own=own)


def _capacity(java: str, default: int, what: str, *, own: bool = False) -> Any:
    return number(java, default, f"{what} that may wait; any more are refused as busy", own=own)


def _wait_limit(java: str, default: int, what: str) -> Any:
    return number(
        java, default, f"{what} that waited longer (ms) are refused as busy; 0: never", low=0
    )


@attrs.frozen(kw_only=True)
class PoolSettings:
    """Bounds of the pools, one for each family of requests.

    fast_failure: refuse requests that waited too long, or behind a stalled disk; false: they wait
        for their turn
    """

    send_workers: int = _workers("sendMessageThreadPoolNums", 4, "sending")
    send_queue: int = _capacity("sendThreadPoolQueueCapacity", 10_000, "sends")
    send_wait_ms: int = _wait_limit("waitTimeMillsInSendQueue", 200, "sends")
    pull_workers: int = _workers("pullMessageThreadPoolNums", 4, "pulling")
    pull_queue: int = _capacity("pullThreadPoolQueueCapacity", 100_000, "pulls")
    pull_wait_ms: int = _wait_limit("waitTimeMillsInPullQueue", 5_000, "pulls")
    lite_pull_workers: int = _workers(
        "litePullMessageThreadPoolNums", 4, "pulling by lite pull consumers"
    )
    lite_pull_queue: int = _capacity("litePullThreadPoolQueueCapacity", 100_000, "lite pulls")
    lite_pull_wait_ms: int = _wait_limit("waitTimeMillsInLitePullQueue", 5_000, "lite pulls")
    ack_workers: int = _workers("ackMessageThreadPoolNums", 1, "acknowledgements of POP consumers")
    ack_queue: int = _capacity("ackThreadPoolQueueCapacity", 100_000, "acknowledgements")
    ack_wait_ms: int = _wait_limit("waitTimeMillsInAckQueue", 3_000, "acknowledgements")
    reply_workers: int = _workers(
        "processReplyMessageThreadPoolNums", 1, "replies of request-reply"
    )
    reply_queue: int = _capacity("replyThreadPoolQueueCapacity", 10_000, "replies")
    query_workers: int = _workers("queryMessageThreadPoolNums", 2, "queries by key or id")
    query_queue: int = _capacity("queryThreadPoolQueueCapacity", 20_000, "queries")
    client_workers: int = _workers(
        "clientManageThreadPoolNums", 1, "clients that connect and leave"
    )
    client_queue: int = _capacity(
        "clientManagerThreadPoolQueueCapacity", 1_000_000, "client requests"
    )
    consumer_workers: int = _workers(
        "consumerManageThreadPoolNums", 1, "offsets and members of consumer groups"
    )
    consumer_queue: int = _capacity(
        "consumerManagerThreadPoolQueueCapacity", 1_000_000, "consumer requests"
    )
    heartbeat_workers: int = _workers("heartbeatThreadPoolNums", 4, "heartbeats")
    heartbeat_queue: int = _capacity("heartbeatThreadPoolQueueCapacity", 50_000, "heartbeats")
    heartbeat_wait_ms: int = _wait_limit("waitTimeMillsInHeartbeatQueue", 31_000, "heartbeats")
    transaction_workers: int = _workers("endTransactionThreadPoolNums", 1, "ends of transactions")
    transaction_queue: int = _capacity(
        "endTransactionPoolQueueCapacity", 100_000, "ends of transactions"
    )
    transaction_wait_ms: int = _wait_limit(
        "waitTimeMillsInTransactionQueue", 3_000, "ends of transactions"
    )
    balance_workers: int = _workers(
        "loadBalanceProcessorThreadPoolNums", 1, "assigning queues to consumers"
    )
    balance_queue: int = _capacity(
        "loadBalanceThreadPoolQueueCapacity", 100_000, "requests for assignments"
    )
    admin_workers: int = _workers(
        "adminBrokerThreadPoolNums", 1, "administration, and everything without a pool of its own"
    )
    admin_queue: int = _capacity("adminBrokerThreadPoolQueueCapacity", 10_000, "admin requests")
    admin_wait_ms: int = _wait_limit(
        "waitTimeMillsInAdminBrokerQueue",
        5_000,
        "admin requests, and those of the pools lock, offset, disk, change and relay,",
    )
    lock_queue: int = _capacity("lockThreadPoolQueueCapacity", 100_000, "locks of queues", own=True)
    offset_workers: int = _workers(
        "offsetThreadPoolNums",
        4,
        "bounds of queues and offsets by time, which may wait for the disk",
        own=True,
    )
    offset_queue: int = _capacity(
        "offsetThreadPoolQueueCapacity", 100_000, "requests for offsets", own=True
    )
    disk_workers: int = _workers(
        "diskThreadPoolNums", 4, "statistics and resets that read old messages", own=True
    )
    disk_queue: int = _capacity(
        "diskThreadPoolQueueCapacity", 1_000, "statistics and resets", own=True
    )
    change_workers: int = _workers(
        "changeThreadPoolNums",
        64,
        "changes of topics and groups, which wait for the disk and the name servers",
        own=True,
    )
    change_queue: int = _capacity(
        "changeThreadPoolQueueCapacity", 1_000, "changes of topics and groups", own=True
    )
    relay_workers: int = _workers(
        "relayThreadPoolNums", 64, "questions to consumers, which wait for their answers", own=True
    )
    relay_queue: int = _capacity(
        "relayThreadPoolQueueCapacity", 1_000, "questions to consumers", own=True
    )
    fast_failure: bool = flag("brokerFastFailureEnable", True)

    def by_name(self) -> Mapping[str, PoolConfig]:
        """Return the pools for the server, by the names that the handler table uses.

        A pool has the settings that are named after it; those without workers have one, since
        their requests wait for nothing.
        """
        pools = {}
        for field in attrs.fields(type(self)):
            name, _, what = field.name.rpartition("_")
            if what == "queue":
                wait = "admin" if name in LIKE_ADMIN else name
                pools[name.replace("_", "-")] = PoolConfig(
                    workers=getattr(self, f"{name}_workers", 1),
                    queue_requests_max=getattr(self, field.name),
                    wait_ms_max=getattr(self, f"{wait}_wait_ms", 0) if self.fast_failure else 0,
                )
        return pools
