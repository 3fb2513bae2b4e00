"""Dashboards and alerts ask for metrics that exist: every name in them is on a page of a cluster
under load, every query is one that Prometheus reads, and every alert is explained.
"""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio
import yaml
from brokers import peer_of
from frames import FrameClient
from golden_metrics import JAVA_PAGE, NOT_OURS, shapes
from metric_load import run_load
from monitor_pages import get, samples
from processes import free_port
from replicated_brokers import broker_group, eventually

from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import BrokerHeader, RegisterBrokerHeader

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
BOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
RULES = DEPLOY / "prometheus-rules.yml"
NAME = re.compile(r"\b(?:rocketmq|triomq|process)_\w+")
EXPORTER_NAMES = ROOT / "tests" / "golden" / "metrics" / "rocketmq-exporter.txt"


def queries_of(board: Path) -> list[str]:
    page = json.loads(board.read_text())
    queries = [target["expr"] for panel in page["panels"] for target in panel["targets"]]
    queries += [
        variable["query"]["query"]
        for variable in page["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert len(queries) > 8
    return queries


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def missing_names(queries: list[str], page: str) -> set[str]:
    """The names in the queries that no sample has; a query without a known name is missing."""
    names = {name for name, _ in samples(page)} | {"up"}
    missing: set[str] = set()
    for query in queries:
        found = set(NAME.findall(query)) | set(re.findall(r"^up\b", query))
        missing |= (found - names) or (set() if found else {query})
    return missing


@pytest.mark.feature("185a")
@pytest.mark.feature(198)
async def test_every_metric_of_boards_and_alerts_exists(tmp_path: Path) -> None:
    names, master, slave, endpoint = (free_port() for _ in range(4))
    settings = {"topicsMax": 60, "grpcServerPort": endpoint, "monitorPort": master}
    controller = ControllerSettings(
        enabled=True,
        group_name="g",
        peers=f"n0-127.0.0.1:{free_port()}",
        self_id="n0",
        store_path=tmp_path / "controller",
    )
    async with broker_group(
        tmp_path, monitor=MonitorSettings(port=names), controller=controller
    ) as group:
        leader = await group.start(0, **settings)
        follower = await group.start(1, monitorPort=slave)
        async with (
            trio.open_nursery() as nursery,
            peer_of(leader.ready) as one,
            peer_of(leader.ready) as two,
        ):
            await nursery.start(run_load, group.namesrv, "TestCluster")
            await one.heartbeat("one", group="odd", subscriptions={"orders": "*"})
            await two.heartbeat("two", group="odd", subscriptions={"orders": "red"})
            for number in range(60):  # until topicsMax refuses
                answer = await one.send_raw(f"more-{number}")
                if answer.code:
                    break
            await trio.to_thread.run_sync(ask_for_a_route, endpoint)
            await eventually(lambda: follower.peer is not None)
            async with FrameClient(int(group.namesrv.rpartition(":")[2])) as gone:
                await gone.call(
                    RequestCode.REGISTER_BROKER,
                    RegisterBrokerHeader("gone", "127.0.0.1:1", "TestCluster", "", 0),
                    RegisterBrokerBody().encode(),
                )
                answer = await gone.call(
                    RequestCode.UNREGISTER_BROKER,
                    BrokerHeader("gone", "127.0.0.1:1", "TestCluster", 0),
                )
                assert answer.code == 0
            pages = [(await get(port, "/metrics"))[2] for port in (names, master, slave)]
            nursery.cancel_scope.cancel()
    page = "\n".join(pages)
    alerts = [rule["expr"] for rule in rules()]
    for board in BOARDS:
        assert missing_names(queries_of(board), page) == set(), board.name
    assert missing_names(alerts, page) == set()
    # The check sees a broken name.
    (broken, *_) = [query for query in alerts if "triomq_storage_writable" in query]
    assert missing_names([broken.replace("writable", "writeable")], page)
    assert missing_names([broken.replace("triomq", "trimoq")], page)
    # Names of Java's boards exist, but for those that docs/metrics.md explains.
    java = set(shapes(JAVA_PAGE.read_text())) - NOT_OURS
    assert java <= set(shapes(pages[1]))
    explained = (ROOT / "docs" / "metrics.md").read_text()
    assert all(f"`{name}`" in explained for name in NOT_OURS)


def ask_for_a_route(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute")
        with contextlib.suppress(grpc.RpcError):  # the answer does not matter, it is counted
            call(b"", timeout=20, wait_for_ready=True)


def test_the_boards_are_as_generated() -> None:
    pages = dict(runpy.run_path(str(DEPLOY / "grafana" / "generate.py"))["pages"]())
    assert {path.name for path in pages} == {path.name for path in BOARDS}
    for path, text in pages.items():
        assert path.read_text() == text, "run python deploy/grafana/generate.py"
    uids = [json.loads(path.read_text())["uid"] for path in BOARDS]
    assert len(set(uids)) == len(uids) == 4


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (Debian: apt-get install prometheus)"
)


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@needs_promtool
def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    """A board's queries as rules of their own, with values in place of Grafana's variables."""
    queries = [
        query.replace("$__rate_interval", "5m")
        for board in BOARDS
        for query in queries_of(board)
        if not query.startswith("label_values")
    ]
    recorded = [{"record": f"q:{n}", "expr": query} for n, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": recorded}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    file.write_text(file.read_text().replace("sum by", "sum bye", 1))
    assert promtool("check", "rules", file).returncode == 1


@needs_promtool
@pytest.mark.feature(198)
def test_the_alerts_fire_when_they_should(tmp_path: Path) -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = DEPLOY / "prometheus-rules-test.yml"
    done = promtool("test", "rules", cases)
    assert done.returncode == 0, done.stdout + done.stderr
    fired = re.findall(r'alertname="(\w+)"', cases.read_text())
    assert sorted(fired) == sorted(rule["alert"] for rule in rules())
    # The cases see a rule that fires too early, and one that never does.
    (tmp_path / cases.name).write_text(cases.read_text())
    for old, new in (("> 0.75", "> 0.5"), ("> 0.75", "> 0.9")):
        broken = RULES.read_text().replace(
            f"triomq_storage_used_ratio {old}", f"triomq_storage_used_ratio {new}"
        )
        (tmp_path / RULES.name).write_text(broken)
        assert promtool("test", "rules", tmp_path / cases.name).returncode == 1


def test_every_alert_has_its_section() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    titles = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    for rule in rules():
        name = rule["alert"]
        assert name in titles
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_exporter_s_names_are_explained() -> None:
    """rocketmq-exporter has names of its own; docs/metrics.md says what to use instead, or why
    there is nothing.
    """
    page = (ROOT / "docs" / "metrics.md").read_text()
    section = page[page.index("## rocketmq-exporter") : page.index("## Our own metrics")]
    first_cells = " ".join(line.split(" | ")[0] for line in section.splitlines())
    for name in EXPORTER_NAMES.read_text().split():
        short = re.sub(r"(tps)(10|60|600)$", r"\1", name)
        short = re.sub(r"_pmdt_.*", "_pmdt_", short)
        assert short in first_cells, name


def test_the_compose_file_brings_them() -> None:
    services = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounts = dict(
        volume.split(":")[:2]
        for service in ("prometheus", "grafana")
        for volume in services[service]["volumes"]
    )
    targets = {target: DEPLOY / source for source, target in mounts.items() if "/" in source}
    assert all(path.exists() for path in targets.values())
    assert targets[prometheus["rule_files"][0]] == DEPLOY / "./prometheus-rules.yml"
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/triomq.yml").read_text())[
        "providers"
    ][0]
    assert targets[provider["options"]["path"]] == DEPLOY / "./grafana/dashboards"
    assert services["grafana"]["profiles"] == services["prometheus"]["profiles"] == ["metrics"]
