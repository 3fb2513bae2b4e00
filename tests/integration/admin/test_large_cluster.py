"""Every listing of mqadmin on a cluster with 2,000 topics and 500 groups, and beside a broker that
hangs: it ends within ``--timeout`` and names what is missing.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from mqadmin_calls import Done, call, mqadmin
from silent_servers import silent_broker

from triomq import Producer
from triomq.testing import InProcessCluster, local_cluster

TOPICS, GROUPS = 2_000, 500
LISTINGS = [
    ["topicList"],
    ["topicList", "-c"],
    ["consumerProgress"],
    ["statsAll"],
    ["statsAll", "-a"],
    ["clusterList"],
    ["brokerConsumeStats", "-b", "BROKER"],
    ["brokerStatus", "-b", "BROKER"],
    ["brokerDisk", "-b", "BROKER"],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    topics = [f"T{number}" for number in range(TOPICS)] + [
        f"%RETRY%G{number}" for number in range(GROUPS)
    ]
    (folder / "topics").write_text(
        json.dumps(
            [
                {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                for topic in topics
            ]
        )
    )
    (folder / "groups").write_text(
        json.dumps([{"groupName": f"G{number}"} for number in range(GROUPS)])
    )
    return folder


@asynccontextmanager
async def large_cluster(files: Path) -> AsyncIterator[InProcessCluster]:
    async with local_cluster() as cluster:
        namesrv, address = cluster.namesrv_address, cluster.brokers[0].address
        for command, name in (("updateTopicList", "topics"), ("updateSubGroupList", "groups")):
            done = await mqadmin(command, "-b", address, "-f", files / name, "-n", namesrv)
            assert done.code == 0, done
        async with Producer(namesrv, group="shop") as producer:
            await producer.send("T7", b"x")
        yield cluster


async def listed(cluster: InProcessCluster, *words: str, timeout: int = 60) -> Done:
    broker = cluster.brokers[0].address
    return await call(
        cluster,
        *(broker if word == "BROKER" else word for word in words),
        "--json",
        "--timeout",
        timeout,
    )


async def test_every_listing_of_a_large_cluster_ends_and_is_complete(files: Path) -> None:
    async with large_cluster(files) as cluster:
        for words in LISTINGS:
            with trio.fail_after(60):
                done = await listed(cluster, *words)
            assert done.code == 0, (words, done.err[-500:])
            if words == ["topicList"]:
                assert {f"T{number}" for number in range(TOPICS)} <= set(done.document["topics"])
            if words == ["consumerProgress"]:
                assert {f"G{number}" for number in range(GROUPS)} <= {
                    row["group"] for row in done.document["groups"]
                }


async def test_a_broker_that_hangs_is_named_within_the_command_s_time_limit(files: Path) -> None:
    async with (
        large_cluster(files) as cluster,
        silent_broker(
            cluster.namesrv_address, (f"T{number}" for number in range(TOPICS))
        ) as silent,
    ):
        for words in (["topicList", "-c"], ["consumerProgress"], ["statsAll"], ["clusterList"]):
            begun = trio.current_time()
            with trio.fail_after(30):
                done = await listed(cluster, *words, timeout=6)
            assert trio.current_time() - begun < 20  # 6 s, and more on a busy machine
            assert done.code in (0, 1, 3, 6), (words, done.code, done.err[-500:])
            text = done.out + done.err
            # Beside others the name server, a part of this process, may be the one that is slow.
            assert silent in text or f"{cluster.namesrv_address} did not answer" in text, words


def test_control_c_ends_it_with_130_and_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "triomq.client.mqadmin.cli", "topicList", "-n", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            with listener.accept()[0]:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")
