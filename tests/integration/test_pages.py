"""Every block of Python in README and docs is run: as part of an example, or here, on a real cluster."""

from __future__ import annotations

import ast
import inspect
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
from triomq.remoting.properties import Entry
from triomq.remoting.settings import Source, load
from triomq.testing import InProcessCluster, local_cluster

README_PAGES = ("README.md", "README.zh-CN.md")
ELSEWHERE = {
    ("docs/protocol.md", "FrameBuffer"): "tests/unit/remoting/test_protocol_page.py",
    ("docs/protocol.md", "BlockingConnection"): "tests/integration/test_protocol_page_live.py",
    **{(page, "spark.readStream"): "tests/integration/test_spark_source.py" for page in (*README_PAGES, "docs/spark.md")},
    ("docs/spark.md", "kafka_like"): "tests/integration/test_spark_source.py",
    ("docs/spark.md", "prepare_java"): "tests/integration/test_spark_source.py",
}
"""which other test runs a block: (page, words of the block) -> its file"""
HERE = {
    **{(page, "async def main"): "test_the_first_program_of_the_readme" for page in README_PAGES},
    **{(page, "async def test_orders"): "test_a_test_with_the_fixture" for page in README_PAGES},
    ("docs/testing.md", "test_orders_are_paid"): "test_a_test_with_the_fixture",
    ("docs/testing.md", "triomq_server: str"): "test_a_test_without_trio",
    ("docs/testing.md", "two_brokers"): "test_a_fixture_of_ones_own",
    ("docs/testing.md", "test_every_order_comes"): "test_a_test_in_virtual_time",
    ("docs/sdk.md", "import trio"): "test_the_imports_of_the_guide",
    ("docs/security.md", "Tls("): "test_a_client_with_tls",
    ("docs/security.md", "VerifySignature"): "test_a_broker_that_verifies",
}


def place(block: Block) -> str | None:
    """The file or test that runs a block."""
    if block.label and LABEL.fullmatch(block.label):
        return "tests/unit/client/test_guide.py" if block.page in ("docs/sdk.md", "docs/concepts.md") else None
    for (page, words), where in {**ELSEWHERE, **HERE}.items():
        if page == block.page and words in block.text:
            return where
    return None


@pytest.mark.feature(200)
def test_every_block_of_python_is_run_somewhere() -> None:
    found = blocks("python")
    assert len(found) > 35
    assert {block.page for block in found} >= {*README_PAGES, "docs/sdk.md", "docs/spark.md", "docs/concepts.md"}
    assert [(block.page, block.text.splitlines()[0]) for block in found if place(block) is None] == []
    for where in {**ELSEWHERE, **HERE}.values():
        assert (ROOT / where).is_file() or callable(globals()[where])


def test_a_block_that_nobody_runs_is_found() -> None:
    assert place(Block("docs/sdk.md", "python", "print(1)\n", None)) is None
    assert place(Block("docs/sdk.md", "python", "print(1)\n", "examples/producer.py")) is not None


async def run(source: str, names: dict[str, Any]) -> None:
    """Run lines that may contain `await` at the top."""
    code = compile(source, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)
    if inspect.isawaitable(value):
        await value


@pytest.mark.feature(200)
@pytest.mark.parametrize("page", README_PAGES)
async def test_the_first_program_of_the_readme(page: str, triomq_cluster: InProcessCluster) -> None:
    source = one(page, "async def main")
    assert source.count('"127.0.0.1:9876"') == 2
    source = source.replace("127.0.0.1:9876", triomq_cluster.namesrv_address)
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-W", "error", "-c", source], capture_stdout=True, capture_stderr=True, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    first, second = done.stdout.decode().splitlines()
    assert "broker-a" in first
    assert second == "b'{\"id\": 1}'"


def pytest_of(folder: Path, *sources: str, imports: str = "") -> str:
    """Run pytest on pieces of test files in a process, as a project that has installed the package would."""
    for number, source in enumerate(sources):
        (folder / f"test_{number}.py").write_text(imports + source)
    (folder / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.feature(200)
async def test_a_test_with_the_fixture(tmp_path: Path) -> None:
    sources = [one(page, "async def test_orders") for page in README_PAGES]
    sources.append(one("docs/testing.md", "test_orders_are_paid"))
    call = partial(pytest_of, tmp_path, *sources, imports="from triomq import Producer\n")
    assert "3 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature(200)
async def test_a_test_without_trio(tmp_path: Path) -> None:
    call = partial(pytest_of, tmp_path, one("docs/testing.md", "triomq_server: str"))
    assert "1 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature(200)
async def test_a_fixture_of_ones_own(tmp_path: Path) -> None:
    use = "\n\nasync def test_it(two_brokers: InProcessCluster) -> None:\n    assert len(two_brokers.brokers) == len(two_brokers.namesrvs) == 2\n"
    call: Callable[[], str] = partial(pytest_of, tmp_path, one("docs/testing.md", "two_brokers") + use)
    assert "1 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature(200)
async def test_a_test_in_virtual_time(tmp_path: Path) -> None:
    call = partial(pytest_of, tmp_path, one("docs/testing.md", "test_every_order_comes"))
    assert "1 passed" in await trio.to_thread.run_sync(call)


@pytest.mark.feature(200)
async def test_the_imports_of_the_guide() -> None:
    names: dict[str, Any] = {}
    await run(one("docs/sdk.md", "import trio"), names)
    assert {"trio", "Message", "Producer", "PullConsumer", "PushConsumer"} <= set(names)


@pytest.mark.feature(200)
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


@pytest.mark.feature(200)
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
            await run(source, {"config": config, "secret": "s3", "run_broker": partial(run_broker, task_status=task_status)})

        ready: BrokerReady = await nursery.start(broker)
        client = ClientSettings(credentials=Credentials(access_key="shop", secret_key="s3"))
        async with Producer(cluster.namesrv_address, group="shop", settings=ProducerSettings(client=client)) as producer:
            assert (await producer.send("Orders", b"signed")).queue.broker_name == "strict"
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            with pytest.raises(SendError, match="accessKey"):
                await producer.send("Orders", b"not signed")
        ready.stop()
