"""Commands about controllers: what they print of a real one, as RocketMQ's mqadmin does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from frames import FrameClient
from monitor_pages import get, value
from mqadmin_calls import mqadmin
from processes import free_port

from triomq.client.mqadmin.commands.controllers import epochs_document
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.controller import members
from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.protocol.bodies.controller import EpochEntries, EpochEntry, SyncStateSet
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    RegisterToControllerHeader,
)

NAME = "broker-a"


@attrs.define(eq=False)
class Running:
    namesrv: str
    monitor: int
    address: str
    client: FrameClient

    async def __call__(self, name: str, *words: str, at: str = "") -> Any:
        where = () if name == "getBrokerEpoch" else ("-a", at or self.address)
        return await mqadmin(name, *where, *words, "-n", self.namesrv)


@asynccontextmanager
async def controller(folder: Path) -> AsyncIterator[Running]:
    """A controller with a group of two, of which the first is master."""
    port, monitor = free_port(), free_port()
    config = NamesrvConfig(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_path=folder / "kv.json",
        monitor=MonitorSettings(port=monitor),
        controller=ControllerSettings(
            enabled=True,
            group_name="group1",
            peers=f"n0-127.0.0.1:{port}",
            self_id="n0",
            store_path=folder,
        ),
    )
    async with trio.open_nursery() as nursery:
        ready = await nursery.start(run_namesrv, config)
        async with FrameClient(port) as client:
            for number in (1, 2):
                address = f"127.0.0.1:{30000 + number}"
                await client.call(
                    Code.CONTROLLER_APPLY_BROKER_ID,
                    ApplyBrokerIdHeader("C", NAME, number, f"{address};1"),
                )
                await client.call(
                    Code.CONTROLLER_REGISTER_BROKER,
                    RegisterToControllerHeader("C", NAME, number, address),
                )
            await client.call(Code.CONTROLLER_ELECT_MASTER, ElectMasterHeader("C", NAME, 1, False))
            await client.call(
                Code.CONTROLLER_ALTER_SYNC_STATE_SET,
                AlterSyncStateSetHeader(NAME, 1, 1),
                SyncStateSet(frozenset({1, 2}), 1).encode(),
            )
            yield Running(f"127.0.0.1:{ready.port}", monitor, f"127.0.0.1:{port}", client)
        ready.stop()


async def test_who_leads_and_what_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "CHANGE_SECONDS", 0.0)
    async with controller(tmp_path) as run:
        shown = await run("getControllerMetaData")
        assert shown.out == (
            f"#ControllerGroup\tgroup1\n#ControllerLeaderId\tn0\n#ControllerLeaderAddress\t"
            f"{run.address}\n#Peer:\tn0:{run.address}\n"
        )
        changed = await run(
            "updateControllerConfig", "-k", "enableElectUncleanMaster", "-v", "true"
        )
        assert changed.out == f"update controller config success, {run.address}\n"
        for words, remark in (
            (("add", "n1"), "write the controller as ID-HOST:PORT"),
            (("add", "n1-127.0.0.1:1"), "follows and does not vote yet"),
            (("add", "n0-127.0.0.1:1"), "remove it first"),
            (("remove", "n0"), "allows no such change"),
            (("remove", "n9"), "no controller is n9: they are n0, n1"),
        ):
            refused = await mqadmin("controller", *words, "-a", run.address)
            assert refused.code != 0
            assert remark in refused.err, refused
        entries = r"lacks [1-9]\d* entries"
        status = await run("getControllerMetaData")
        assert re.search(rf"#Peer:\tn1:127.0.0.1:1\t{entries}\tdoes not vote yet\n", status.out)
        assert f"n0:{run.address}\n" in status.out
        found = (await run("getControllerMetaData", "--json")).document["controllers"]
        assert found[run.address]["followers"]["n1"]["votes"] is False
        tried = await run("removeController", "n1", "--dry-run")
        assert "CHANGE_CONTROLLERS" in tried.out
        document = (await run("removeController", "n1", "--json")).document
        peers = [f"n0:{run.address}"]
        assert document == {"controllerId": "n1", "change": "remove", "peers": peers}
        settings = (await run("getControllerConfig", "--json")).document["controllers"]
        assert settings[run.address]["enableElectUncleanMaster"] == "true"


async def test_controllers_are_asked_without_a_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    async with controller(tmp_path) as run:
        for words in (
            ("controller", "status"),
            ("getControllerConfig",),
            ("getSyncStateSet", "-b", NAME),
            ("electMaster", "-b", "2", "-bn", NAME, "-c", "C"),
            ("cleanBrokerMetadata", "-bn", NAME, "-b", "1", "-l", "--yes"),
        ):
            done = await mqadmin(*words, "-a", run.address)
            assert (done.code, done.err) == (0, ""), done
        by_cluster = await mqadmin("getSyncStateSet", "-c", "C", "-a", run.address)
        assert "no name server is configured" in by_cluster.err


async def test_the_replicas_of_a_group(tmp_path: Path) -> None:
    async with controller(tmp_path) as run:
        shown = await run("getSyncStateSet", "-b", NAME)
        replicas = "".join(
            f"InSyncReplica:\tReplicaIdentity{{brokerName='{NAME}', brokerId={number},"
            f" brokerAddress='127.0.0.1:{30000 + number}', alive=true}}\n"
            for number in (1, 2)
        )
        assert shown.out == (
            f"#brokerName\t{NAME}\n#MasterBrokerId\t1\n#MasterAddr\t127.0.0.1:30001\n"
            f"#MasterEpoch\t1\n#SyncStateSetEpoch\t2\n#SyncStateSetNums\t2\n{replicas}"
        )
        document = (await run("getSyncStateSet", "-b", NAME, "--json")).document
        assert document["groups"][NAME]["inSyncReplicas"][1] == {
            "brokerId": 2,
            "brokerAddress": "127.0.0.1:30002",
            "alive": True,
        }
        incomplete = "triomq_controller_groups_incomplete"
        assert value((await get(run.monitor, "/metrics"))[2], incomplete) == 0
        new = ApplyBrokerIdHeader("C", NAME, 3, "127.0.0.1:30003;1")
        await run.client.call(Code.CONTROLLER_APPLY_BROKER_ID, new)
        assert value((await get(run.monitor, "/metrics"))[2], incomplete) == 1
        unknown = await run("getSyncStateSet", "-b", "x")
        assert (unknown.out, "no such group" in unknown.err) == ("", True)
        assert (await run("getSyncStateSet")).code == 2


async def test_another_master_and_a_broker_less(tmp_path: Path) -> None:
    async with controller(tmp_path) as run:
        words = ("-b", "2", "-bn", NAME, "-c", "C")
        tried = await run("electMaster", *words, "--dry-run")
        assert tried.code == 0
        assert "CONTROLLER_ELECT_MASTER" in tried.out
        elected = await run("electMaster", *words)
        assert elected.out == (
            f"#ClusterName\tC\n#BrokerName\t{NAME}\n#BrokerMasterAddr\t127.0.0.1:30002\n"
            "#MasterEpoch\t2\n#SyncStateSetEpoch\t3\n"
            "\t#Broker\t1\t127.0.0.1:30001\n\t#Broker\t2\t127.0.0.1:30002\n"
        )
        again = await run("electMaster", *words)
        assert again.code == 1
        assert "is still alive" in again.err
        alive = await run("cleanBrokerMetadata", "-bn", NAME, "-b", "1", "--yes")
        assert "is still alive, clean up failure" in alive.err
        words = ("-bn", NAME, "-b", "1", "-l")
        for name, changing in (
            ("cleanBrokerMetadata", words),
            ("updateControllerConfig", ("-k", "enableElectUncleanMaster", "-v", "true")),
        ):
            tried = await run(name, *changing, "--dry-run")
            assert tried.code == 0
            assert "CLEAN_BROKER" in tried.out or "UncleanMaster" in tried.out, tried.out
        assert "enableElectUncleanMaster=true" not in (await run("getControllerConfig")).out
        cleaned = await run("cleanBrokerMetadata", *words, "--yes")
        assert cleaned.out == f"clear broker {NAME} metadata from controller success!\n"
        document = (await run("getSyncStateSet", "-b", NAME, "--json")).document["groups"][NAME]
        assert document["notInSyncReplicas"] == []


async def test_the_leader_is_asked_whichever_controllers_are_named(tmp_path: Path) -> None:
    async with controller(tmp_path) as run:
        dead = f"127.0.0.1:{free_port()}"
        shown = await run("getSyncStateSet", "-b", NAME, at=f"{dead};{run.address}")
        assert "#MasterBrokerId\t1" in shown.out
        silent = await run("getSyncStateSet", "-b", NAME, at=dead)
        assert silent.code != 0
        assert dead in silent.err


def test_the_last_epoch_ends_where_the_log_does() -> None:
    entries = [
        EpochEntry(epoch=1, start_offset=0, end_offset=100),
        EpochEntry(epoch=3, start_offset=100, end_offset=2**63 - 1),
    ]
    found = EpochEntries(
        cluster_name="C", broker_name=NAME, broker_id=0, epoch_list=entries, max_offset=170
    )
    assert [one["endOffset"] for one in epochs_document(found)["epochs"]] == [100, 170]


@pytest.mark.parametrize("spelling", ["-bn", "--brokerName", "--broker-name"])
def test_an_option_may_have_two_letters(spelling: str) -> None:
    from triomq.client.admin.arguments import Option, parse

    options = (Option("-b, --brokerId ID", ""), Option("-bn, --brokerName NAME", ""))
    found = parse(options, [spelling, "x", "-b1"])
    assert SimpleNamespace(id=found.text("brokerId"), name=found.text("brokerName")) == (
        SimpleNamespace(id="1", name="x")
    )
