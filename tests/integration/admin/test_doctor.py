"""mqadmin doctor and a real cluster: addresses, name servers that agree, clocks, groups with
different subscriptions, lag.
"""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from brokers import peer_of, running_broker
from mqadmin_calls import run
from processes import free_port

from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.admin.doctor import cluster_checks
from triomq.client.admin.doctor.cluster_checks import broker_findings, clock_skew, groups_of_brokers
from triomq.remoting.core.findings import Level
from triomq.testing import InProcessCluster, local_cluster


@pytest.fixture
async def cluster(tmp_path: Path, roomy_disk: None) -> AsyncIterator[InProcessCluster]:
    async with local_cluster(dir=tmp_path, namesrvs=2) as running:
        yield running


async def doctor(namesrv: str, *words: str) -> tuple[int, dict[str, Any]]:
    out, err = io.StringIO(), io.StringIO()
    code = await run(["doctor", "--cluster", "-n", namesrv, "--json", *words], out, err)
    assert err.getvalue() == ""
    return code, json.loads(out.getvalue())


def bad(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (one["level"], one["area"], one["check"])
        for one in document["findings"]
        if one["level"] in ("advice", "problem")
    ]


async def test_a_cluster_of_this_machine(cluster: InProcessCluster) -> None:
    """All is well except for the address: only this machine can reach the loopback address."""
    code, document = await doctor(cluster.namesrv_address)
    assert (code, document["ok"], bad(document)) == (
        0,
        True,
        [("advice", "broker", "broker-a:0 address")],
    )
    assert {"broker-a", "name servers agree", "broker-a:0 clock"} <= {
        one["check"] for one in document["findings"]
    }
    assert (await doctor(cluster.namesrv_address, "--strict"))[0] == 1


@pytest.mark.feature("182a", "182e")
async def test_addresses_that_do_not_answer_and_name_servers_that_differ(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    nowhere, first = f"127.0.0.1:{free_port()}", cluster.namesrvs[0].address
    async with running_broker(
        tmp_path / "other",
        namesrvAddr=first,
        brokerName="broker-x",
        brokerIP1="127.0.0.2",
        bindAddress="127.0.0.1",
    ):
        code, document = await doctor(f"{cluster.namesrv_address};{nowhere}", "--timeout", "2")
    assert code == 1
    assert set(bad(document)) == {
        ("problem", "name server", nowhere),
        ("problem", "name server", f"{cluster.namesrvs[1].address} agrees"),
        ("problem", "broker", "broker-x:0 address"),
        ("advice", "broker", "broker-a:0 address"),
    }
    fixes = {one["check"]: one["fix"] for one in document["findings"]}
    assert "brokerIP1" in fixes["broker-x:0 address"]


@pytest.mark.feature("182c", "182d", "182e")
async def test_groups_with_different_subscriptions_or_lag(cluster: InProcessCluster) -> None:
    await cluster.create_topic("orders", queues=1)
    address = cluster.brokers[0].address

    class Ready:
        port = int(address.rpartition(":")[2])

    async with peer_of(Ready()) as one, peer_of(Ready()) as other:  # type: ignore[arg-type]
        for number in range(5):
            await one.send("orders", b"%d" % number)
        await one.heartbeat("one", group="shop", subscriptions={"orders": "*"})
        await other.heartbeat("other", group="shop", subscriptions={"orders": "TagA"})
        await one.commit("shop", "orders", 0, 1)
        code, document = await doctor(cluster.namesrv_address, "--lag", "3")
    assert code == 1
    assert {("problem", "group", "shop"), ("advice", "group", "shop")} <= set(bad(document))
    assert {
        one["found"]
        for one in document["findings"]
        if one["level"] == "advice" and one["area"] == "group"
    } == {"4 messages behind"}
    fixes = {one["level"]: one["fix"] for one in document["findings"] if one["area"] == "group"}
    assert "the same topics and tags" in fixes["problem"]
    assert "members" in fixes["advice"]


@pytest.mark.feature("182b", "182e")
async def test_a_broker_whose_clock_is_another_one(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor's own clock is set forward, so the broker's clock is behind."""
    monkeypatch.setattr(cluster_checks, "time", SimpleNamespace(time=lambda: time.time() + 100))
    code, document = await doctor(cluster.namesrv_address)
    assert code == 1
    (found,) = [one for one in document["findings"] if one["check"] == "broker-a:0 clock"]
    assert found["level"] == "problem"
    assert re.match(r"-(99|100|101) s against this machine", found["found"])
    assert "chrony" in found["fix"]


async def test_a_cluster_without_brokers_and_without_anything(tmp_path: Path) -> None:
    async with local_cluster(dir=tmp_path) as cluster:
        await cluster.stop_broker("broker-a")
        code, document = await doctor(cluster.namesrv_address)
        assert (code, bad(document)) == (
            1,
            [("problem", "cluster", "brokers"), ("advice", "broker", "broker-a:0 is missing")],
        )
    nowhere = f"127.0.0.1:{free_port()}"
    code, document = await doctor(nowhere)
    assert (code, bad(document)) == (1, [("problem", "name server", nowhere)])


def test_clocks_slaves_and_full_disks() -> None:
    status = {
        "bootTimestamp": "1000000000000",
        "runtime": "[ 0 days, 1 hours, 2 minutes, 3 seconds ]",
    }
    assert clock_skew(status, 1_000_000_000 + 3723) == 0.5
    broker = BrokerAddress("C", "broker-a", 0, "10.0.0.1:10911")
    late = {
        **status,
        "commitLogDiskRatio": "0.93",
        "consumeQueueDiskRatio": "0.1",
        "refused_send": "overload 3, rejected 0",
        "logsParted": "our log ends at 9, the master's at 5",
    }
    found = {
        finding.check: finding.level
        for finding in broker_findings(broker, late, None, 1_000_000_000)
    }
    assert found == {
        "broker-a:0 address": Level.OK,
        "broker-a:0 clock": Level.PROBLEM,
        "broker-a:0 disk": Level.PROBLEM,
        "broker-a:0 refusals": Level.ADVICE,
        "broker-a:0 log": Level.PROBLEM,
    }
    orphans = [BrokerAddress("C", "broker-b", 1, "10.0.0.2:10911"), broker]
    assert [(finding.check, finding.level) for finding in groups_of_brokers(orphans)] == [
        ("broker-a", Level.OK),
        ("broker-b", Level.PROBLEM),
    ]


async def test_without_name_servers_the_machine_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "triomq.client.mqadmin.cli", "doctor", "--dir", str(tmp_path)]
    done = await trio.run_process(
        [*words, "--json"], capture_stdout=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    document = json.loads(done.stdout)
    assert {one["area"] for one in document["findings"]} >= {
        "limits",
        "memory",
        "disk",
        "clock",
        "network",
        "python",
    }
    assert done.returncode == (0 if document["ok"] else 1)
    done = await trio.run_process(
        [*words, "--cluster"], capture_stderr=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 6
