"""What a user gets from ``pip install triomq``: a wheel built from the sdist, installed into an
empty environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MORE_THAN_THE_WHEEL = {"opentelemetry_spans", "test_order_service", "web_service"}
PACKAGES = ("remoting", "namesrv", "broker", "client")

PROGRAM = """
import trio

from triomq import (
    ClientSettings, ConsumeContext, ConsumerSettings, Message, Producer, ProducerSettings,
    PullConsumer, PushConsumer, ReceivedMessage, SendContext, SendReceipt,
)
from triomq.testing import local_cluster

class Meter:
    def before_send(self, context: SendContext) -> None: ...
    def after_send(self, context: SendContext) -> None: ...

class First:
    # A whole number that is no int, as NumPy's are.
    def __index__(self) -> int:
        return 0

# A stop that waited for any of these would take an hour.
client = ClientSettings(
    shutdown_timeout=3600, farewell_timeout=3600, route_interval=3600, heartbeat_interval=3600,
)
sending = ProducerSettings(
    compression="zlib", send_hooks=[Meter()], retry_codes={1, 2}, latency_max=[1.0],
    not_available=(2.0,), client=client,
)
receiving = ConsumerSettings(
    rebalance_interval=3600, offset_interval=3600, suspend=3600, pull_timeout=7200,
    error_delay=3600, client=client,
)

async def send(producer: Producer) -> SendReceipt:
    return await producer.send("T", b"x", keys={"k"}, queue=First())

async def main() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("T", queues=1)
        arrived = trio.Event()

        async def handle(message: ReceivedMessage) -> None:
            assert message.keys == ("k",)
            arrived.set()

        with trio.fail_after(60):
            names = cluster.namesrv_address
            async with PushConsumer(
                names, group="g", subscriptions="T", consume_from="first", handler=handle,
                settings=receiving,
            ) as consumer:
                await consumer.wait_assigned()
                async with (
                    Producer(names, group="p", settings=sending) as producer,
                    PullConsumer({names}, group="h", settings=receiving) as puller,
                ):
                    receipt: SendReceipt = await send(producer)
                    await puller.assign([receipt.queue])
                    await puller.seek(receipt.queue, First())
                    messages: list[ReceivedMessage] = await puller.poll()
                    copies: list[Message] = [message.copy_to("U") for message in messages]
                    assert [copy.body for copy in copies] == [b"x"]
                    await arrived.wait()
        print("stopped")

if __name__ == "__main__":
    trio.run(main)
"""
WRONG = (
    PROGRAM
    + """
async def wrong(producer: Producer) -> None:
    await producer.send("T", "text")
    Message(topic="T", body=b"x", keys=5)
ConsumerSettings(consume_hooks=[Meter()])
"""
)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} failed\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist (``python -m build``
    does it in this order).
    """
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_sdist_holds_ordinary_files(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    names = {member.name.split("/", 1)[1] for member in members}
    assert {
        "broker/app.py",
        "remoting/protocol/record.py",
        "triomq/py.typed",
        "pyspark_triomq/__init__.py",
        "LICENSE",
    } <= names


def test_wheel_puts_only_two_names_into_site_packages(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "triomq",
        "pyspark_triomq",
    }
    expected = {
        f"triomq/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert expected <= set(names)
    assert "triomq/py.typed" in names


FIRST = """
import triomq
from triomq.testing import server_in_thread

with server_in_thread() as cluster:
    with triomq.sync.Producer(cluster.namesrv_address, group="p") as producer:
        producer.send("Orders", b"first", timeout=30)
    with triomq.sync.PullConsumer(
        cluster.namesrv_address, group="g", consume_from="first"
    ) as consumer:
        consumer.assign(consumer.queues("Orders"))
        print(consumer.poll(timeout=30)[0].body.decode(), triomq.client.__file__)
"""


def test_a_checkout_without_links_is_complete(dist: Path, tmp_path: Path) -> None:
    """Git on Windows writes a text file with the target in place of a link."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("triomq", "pyspark_triomq"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=lambda folder, names: PACKAGES if Path(folder) == ROOT / "triomq" else (),
        )
    for name in PACKAGES:
        (tmp_path / "triomq" / name).write_text(f"../{name}")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    printed = run(sys.executable, "-c", FIRST, cwd=tmp_path)
    assert printed == f"first {tmp_path / 'client' / '__init__.py'}\n"
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", "out", ".", cwd=tmp_path)
    made, wanted = (
        set(zipfile.ZipFile(next(folder.glob("*.whl"))).namelist())
        for folder in (tmp_path / "out", dist)
    )
    assert made == wanted


@pytest.fixture(scope="module")
def installed(dist: Path) -> Path:
    """The Python of an environment that has nothing but the wheel and what it needs."""
    folder = dist / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        next(dist.glob("*.whl")),
        cwd=dist,
    )
    return python


@pytest.mark.feature("179a")
def test_wheel_runs_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    python = installed
    (tmp_path / "client.py").write_text("MINE = True\n")
    program = (
        "import client, triomq; assert client.MINE; "
        "from triomq import Producer, PushConsumer, PullConsumer, Message; "
        "import triomq.broker.app, triomq.namesrv.app, pyspark_triomq; print(Producer.__module__)"
    )
    assert run(python, "-c", program, cwd=tmp_path).startswith("triomq.client.")
    for script in (
        "mqnamesrv",
        "mqbroker",
        "mqcontroller",
        "mqadmin",
        "mqstore",
        "mqlocal",
        "mqproxy",
        "mqpipeline",
        "triomq",
    ):
        assert "usage" in run(python.parent / script, "--help", cwd=tmp_path).lower()


def mypy(python: Path, *files: Path) -> tuple[int, str]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        str(python),
        *map(str, files),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=python.parent, timeout=170, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.feature("171a", "171c")
def test_programs_that_use_the_installed_wheel_are_strictly_typed_and_stop_at_once(
    installed: Path, tmp_path: Path
) -> None:
    """As ``pip install`` leaves it, seen by a type checker from outside; wrong arguments are found.
    No stop waits for one of its time limits.
    """
    good, wrong = tmp_path / "good.py", tmp_path / "wrong.py"
    good.write_text(PROGRAM)
    wrong.write_text(WRONG)
    examples = [
        path
        for path in sorted((ROOT / "examples").glob("*.py"))
        if path.stem not in MORE_THAN_THE_WHEEL
    ]
    assert mypy(installed, *examples, good) == (
        0,
        f"Success: no issues found in {len(examples) + 1} source files\n",
    )
    code, output = mypy(installed, wrong)
    assert code == 1
    assert 'No overload variant of "send"' in output
    assert 'incompatible type "int"; expected "Iterable[str]"' in output
    assert 'incompatible type "Meter"; expected "ConsumeHook"' in output
    assert run(installed, good, cwd=tmp_path) == "stopped\n"
