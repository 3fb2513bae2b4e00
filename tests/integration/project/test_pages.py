"""Every block of Python in README and docs is run: as part of an example, or here, on a real
cluster.
"""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from pages import LABEL, ROOT, Block, blocks, one

from triomq import ClientSettings, Credentials, Producer, ProducerSettings, SendError
from triomq.broker.app import BrokerReady, run_broker
from triomq.broker.config import BrokerConfig
from triomq.broker.java_keys import BROKER_KEYS
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import Source, load
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.testing import InProcessCluster, local_cluster

README_PAGES = ("README.md", "README.zh-CN.md")
ELSEWHERE = {
    ("docs/architecture/grpc.md", "Greeter"): "tests/integration/grpc/test_grpc_page.py",
    ("docs/protocol.md", "FrameBuffer"): "tests/unit/remoting/protocol/test_protocol_page.py",
    (
        "docs/protocol.md",
        "BlockingConnection",
    ): "tests/integration/remoting/test_protocol_page_live.py",
    **{
        (page, "spark.readStream"): "tests/integration/spark/test_source.py"
        for page in (*README_PAGES, "docs/spark.md")
    },
    ("docs/sdk/transactions.md", "psycopg"): "tests/integration/client/test_transaction_example.py",
    ("docs/rocketmq5-clients.md", "from rocketmq import"): "tests/compat/test_rocketmq5_page.py",
    ("docs/spark.md", "changes.write"): "tests/integration/spark/test_sink.py",
    ("docs/spark.md", "dropDuplicatesWithinWatermark"): "tests/integration/spark/test_sink.py",
    ("docs/spark.md", "dataSource.register"): "tests/integration/spark/test_shipping.py",
    ("docs/spark.md", "rocketmq-store"): "tests/integration/spark/test_store_source.py",
    ("docs/spark.md", "ProgressListener"): "tests/integration/spark/test_source.py",
    ("docs/spark.md", "kafka_like"): "tests/integration/spark/test_source.py",
    ("docs/spark.md", "prepare_java"): "tests/integration/spark/test_source.py",
    **{
        ("docs/pipeline.md", words): "tests/integration/pipeline/test_front.py"
        for words in ("send_many", "pandas", "getOrCreate", "live_rows")
    },
    ("docs/pipeline.md", "_spark_metadata"): "tests/integration/pipeline/test_lake_parquet.py",
}
"""which other test runs a block: (page, words of the block) -> its file"""
HERE = {
    **{(page, "async def main"): "test_the_first_program_of_the_readme" for page in README_PAGES},
    **{(page, "async def test_orders"): "test_a_test_with_the_fixture" for page in README_PAGES},
    ("docs/testing.md", "test_orders_are_paid"): "test_a_test_without_trio",
    **{
        ("docs/testing.md", f"def test_{words}"): "test_a_test_without_trio"
        for words in ("orders(", "asyncio_orders", "anyio_orders")
    },
    ("docs/testing.md", "two_brokers"): "test_a_fixture_of_the_project",
    ("docs/testing.md", "test_every_order_comes"): "test_a_test_in_virtual_time",
    ("docs/sdk.md", "import trio"): "test_the_imports_of_the_guide",
    ("docs/security.md", "Tls("): "test_a_client_with_tls",
    ("docs/security.md", "VerifySignature"): "test_a_broker_that_verifies",
}


def place(block: Block) -> str | None:
    """The file or test that runs a block."""
    if block.label and LABEL.fullmatch(block.label):
        return (
            "tests/unit/client/sdk/test_guide.py"
            if f"{block.page.removeprefix('docs/').removesuffix('.md')}".startswith(
                ("sdk", "concepts", "index", "tutorial")
            )
            else None
        )
    for (page, words), where in {**ELSEWHERE, **HERE}.items():
        if page == block.page and words in block.text:
            return where
    return None


@pytest.mark.feature("200a", "200c")
def test_every_block_of_python_is_run_somewhere() -> None:
    found = blocks("python")
    assert len(found) > 35
    assert {block.page for block in found} >= {
        *README_PAGES,
        "docs/sdk.md",
        "docs/sdk/sending.md",
        "docs/sdk/consuming.md",
        "docs/spark.md",
        "docs/concepts.md",
    }
    assert [
        (block.page, block.text.splitlines()[0]) for block in found if place(block) is None
    ] == []
    for where in {**ELSEWHERE, **HERE}.values():
        assert (ROOT / where).is_file() or callable(globals()[where])


def test_a_block_that_no_test_runs_is_found() -> None:
    assert place(Block("docs/sdk.md", "python", "print(1)\n", None)) is None
    assert place(Block("docs/sdk.md", "python", "print(1)\n", "examples/producer.py")) is not None


@pytest.mark.feature("160a")
def test_the_page_of_concepts_compares_calls_with_messages_and_the_two_models() -> None:
    sections = dict(
        part.split("\n", 1)
        for part in (ROOT / "docs" / "concepts.md").read_text().split("\n## ")[1:]
    )
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in sections["A call or a message"].splitlines()
        if line.startswith("|")
    ]
    assert table[0][1:] == ["A call (RPC)", "A message through a broker"]
    assert len(table) > 6
    assert all(all(row) for row in table[2:])
    models = sections["Point-to-point and publish-subscribe"]
    assert "**Point-to-point**: the members of one group share" in models
    assert "**Publish-subscribe**: every group gets every message" in models


@pytest.mark.feature("150a", "150b", "150c")
def test_the_advice_on_queues_and_disks_has_figures_of_the_page_of_benchmarks() -> None:
    def numbers(text: str) -> list[str]:
        return re.findall(r"\d+,\d{3}|\d+\.\d+|\d{2,}", text)

    section = (
        (ROOT / "docs" / "operations.md")
        .read_text()
        .partition("## How many queues, which disk\n")[2]
        .partition("\n## ")[0]
    )
    warning, table, disk = re.split(
        r"\n\n(?=\| queues)|\n\n(?=The log is written)", section.strip()
    )
    assert "A queue is metadata" in warning
    assert "It is load for clients" in warning
    assert "slow random reads" in disk
    assert "SSD with the I/O scheduler `mq-deadline` or `none`" in disk
    measured = (ROOT / "docs" / "performance.md").read_text()
    rows = [
        set(numbers(line))
        for line in measured.partition("## Many queues")[2].splitlines()
        if line.startswith("| ")
    ]
    for line in table.splitlines()[2:]:
        assert any(set(numbers(line)) <= row for row in rows), line
    (alone, beside) = numbers(disk)
    assert f"| {alone}; {beside} |" in measured


async def run(source: str, names: dict[str, Any]) -> None:
    """Run lines that may contain ``await`` at the top."""
    code = compile(source, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)
    if inspect.isawaitable(value):
        await value


@pytest.mark.feature("200c")
def test_both_readmes_have_the_same_programs_and_commands() -> None:
    """So that those of one of them stand for both."""
    english, chinese = (
        [block.text if block.info == "python" else block.commands for block in found]
        for found in (
            [block for block in blocks("python", "sh", "console") if block.page == page]
            for page in README_PAGES
        )
    )
    assert english == chinese
    assert len(english) > 5


@pytest.mark.feature("200a", "200c")
async def test_the_first_program_of_the_readme(triomq_cluster: InProcessCluster) -> None:
    source = one(README_PAGES[0], "async def main")
    assert source.count('"127.0.0.1:9876"') == 2
    source = source.replace("127.0.0.1:9876", triomq_cluster.namesrv_address)
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-W", "error", "-c", source],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    first, second = done.stdout.decode().splitlines()
    assert "broker-a" in first
    assert second == "b'{\"id\": 1}'"


def pytest_of(
    folder: Path, *sources: str, imports: str = "", settings: str = "trio_mode = true"
) -> str:
    """Run pytest on pieces of test files in a process, as a project that has installed the package
    would.
    """
    for number, source in enumerate(sources):
        (folder / f"test_{number}.py").write_text(imports + source)
    (folder / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.feature("200a", "200c")
async def test_a_test_with_the_fixture(tmp_path: Path) -> None:
    source = one(README_PAGES[0], "async def test_orders")
    call = partial(pytest_of, tmp_path, source, imports="from triomq import Producer\n")
    assert "1 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature("200a")
async def test_a_test_without_trio(tmp_path: Path) -> None:
    """As typed, without any configuration: each with the plugin of its loop."""
    words = ("test_orders_are_paid", "test_orders(", "test_asyncio_orders", "test_anyio_orders")
    sources = [one("docs/testing.md", f"def {name}") for name in words]
    sources += [(ROOT / "examples" / "test_order_service.py").read_text()]
    shutil.copy(ROOT / "examples" / "order_service.py", tmp_path)
    call = partial(pytest_of, tmp_path, *sources, settings="")
    assert "6 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature("200a")
async def test_a_fixture_of_the_project(tmp_path: Path) -> None:
    use = (
        "\n\nasync def test_it(two_brokers: InProcessCluster) -> None:\n    assert"
        " len(two_brokers.brokers) == len(two_brokers.namesrvs) == 2\n"
    )
    call: Callable[[], str] = partial(
        pytest_of, tmp_path, one("docs/testing.md", "two_brokers") + use
    )
    assert "1 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature("200a")
async def test_a_test_in_virtual_time(tmp_path: Path) -> None:
    call = partial(pytest_of, tmp_path, one("docs/testing.md", "test_every_order_comes"))
    assert "1 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature("200a")
async def test_the_imports_of_the_guide() -> None:
    names: dict[str, Any] = {}
    await run(one("docs/sdk.md", "import trio"), names)
    assert {"trio", "Message", "Producer", "PullConsumer", "PushConsumer"} <= set(names)


@pytest.mark.feature("200a")
async def test_a_client_with_tls(tmp_path: Path) -> None:
    source = one("docs/security.md", "Tls(")
    files = {"ca.pem": "ca.pem", "client.pem": "server.pem", "client-key.pem": "server-key.pem"}
    for name in files:
        assert f'"{name}"' in source
        source = source.replace(f'"{name}"', f'"{tmp_path / name}"')
    async with local_cluster(tls=True) as cluster:
        for name, made in files.items():
            (tmp_path / name).write_bytes((cluster.dir / "tls" / made).read_bytes())
        names: dict[str, Any] = {}
        await run(source.replace("ns1:9876", cluster.namesrv_address), names)
        async with names["producer"] as producer:
            receipt = await producer.send("Orders", b"over TLS")
    assert receipt.queue_offset == 0


@pytest.mark.feature("200a")
async def test_a_broker_that_verifies(tmp_path: Path) -> None:
    source = one("docs/security.md", "VerifySignature")
    async with local_cluster(brokers=0) as cluster, trio.open_nursery() as nursery:
        lines = {
            "brokerName": "strict",
            "brokerIP1": "127.0.0.1",
            "listenPort": "0",
            "haListenPort": "0",
            "storePathRootDir": str(tmp_path),
            "namesrvAddr": cluster.namesrv_address,
        }
        entries = tuple(Entry(key, value) for key, value in lines.items())
        config = load(BrokerConfig, [Source("test", entries)], BROKER_KEYS).config

        async def broker(*, task_status: trio.TaskStatus[BrokerReady]) -> None:
            await run(
                source,
                {
                    "config": config,
                    "secret": "s3",
                    "run_broker": partial(run_broker, task_status=task_status),
                },
            )

        ready: BrokerReady = await nursery.start(broker)
        client = ClientSettings(credentials=Credentials(access_key="shop", secret_key="s3"))
        async with Producer(
            cluster.namesrv_address, group="shop", settings=ProducerSettings(client=client)
        ) as producer:
            assert (await producer.send("Orders", b"signed")).queue.broker_name == "strict"
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            with pytest.raises(SendError, match="accessKey"):
                await producer.send("Orders", b"not signed")
        ready.stop()


async def test_the_connector_of_the_reference(triomq_cluster: InProcessCluster) -> None:
    source = one("docs/reference/remoting/clients.md", "async with Connector", kind="")
    names: dict[str, Any] = {
        "Connector": Connector,
        "ConnectorConfig": ConnectorConfig,
        "RequestCode": RequestCode,
        "request": request,
    }
    await run(source.replace("127.0.0.1:9876", triomq_cluster.namesrv_address), names)
    assert b"broker-a" in names["answer"].body


@pytest.mark.parametrize(
    ("page", "kind"), [("docs/security.md", "json"), ("docs/reference/remoting/clients.md", "")]
)
def test_the_proxies_of_the_pages(page: str, kind: str) -> None:
    proxies = SocksProxies.parse(one(page, "10.0.0.0/8", kind))
    assert [cidr for cidr, _ in proxies.ranges] == ["10.0.0.0/8", "0.0.0.0/0"]
    assert proxies.for_host("10.1.2.3") != proxies.for_host("192.168.1.1")
