"""``triomq run``: consumers from the command line, their probes, their parent, their reload."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from threaded_cluster import cluster_in_a_thread

from triomq import Probes, Producer, PullConsumer, PushConsumer, SettingsError, SimpleConsumer, sync
from triomq.client.runner import supervisor as supervisor_module
from triomq.client.runner.command_line import read_options, run_parser
from triomq.client.runner.source_changes import SourceChanges
from triomq.client.runner.supervisor import Supervisor
from triomq.remoting.core.settings import ConfigError
from triomq.runner.targets import load_consumers
from triomq.testing import InProcessCluster

APP = """
import threading
from triomq import PushConsumer, SimpleConsumer, aio, sync

async def handle(message):
    print("handled", message.body.decode(), flush=True)

def handle_plainly(message):
    print("handled", message.body.decode(), flush=True)

OPTIONS = {"group": "G", "consume_from": "first"}
consumer = PushConsumer(subscriptions="T", handler=handle, **OPTIONS)
idle = PushConsumer(subscriptions="T", group="G")
text = "no consumer"

def with_asyncio():
    return [aio.PushConsumer(subscriptions="T", handler=handle, **OPTIONS)]

def with_threads():
    return [sync.PushConsumer(subscriptions="T", handler=handle_plainly, **OPTIONS)]
"""


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with cluster_in_a_thread(topic="T") as address:
        yield address


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "run_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("run_app", None)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def running(app: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    environment.pop("NAMESRV_ADDR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "triomq.runner", "run", *arguments],
        cwd=app, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:  # Python 3.14 warns of one that is not closed
            return error.code, error.read().decode()


@pytest.mark.parametrize("target", ["consumer", "with_asyncio", "with_threads"])
def test_consumers_run_and_answer_probes_until_a_signal(
    app: Path, namesrv: str, target: str
) -> None:
    port = free_port()
    with sync.Producer(namesrv, group="p") as producer:
        producer.send("T", target.encode())
    (app / "settings.env").write_text(f"# a comment\nNAMESRV_ADDR={namesrv}\n")
    options = ["--env-file", "settings.env", "--port", str(port)]
    with running(app, f"run_app:{target}", *options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"handled {target}\n"
        assert get(port, "/live") == (200, "live\n")
        while get(port, "/ready") != (200, "ready\n"):  # its first share is not complete
            time.sleep(0.05)
        page = get(port, "/metrics")[1]
        assert 'triomq_consumer_messages_pulled_total{group="G",topic="T"} 1' in page
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_several_processes_end_with_their_parent(
    app: Path, namesrv: str, number: signal.Signals
) -> None:
    """Also if it is killed: their output ends when the last one has ended."""
    arguments = ["run_app:consumer", "--processes", "2", "-n", namesrv]
    with running(app, *arguments) as process:
        assert process.stderr is not None
        gained = 0
        while gained < 2:
            gained += "gained T" in process.stderr.readline()
        process.send_signal(number)
        rest = process.stderr.read()
        assert rest.count("SIGTERM: stopping") == 2
        assert process.wait(30) == (0 if number == signal.SIGTERM else -number)


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (["run_app"], "'run_app' names no consumer; write MODULE:NAME"),
        (["no_such_app:x"], "there is no module no_such_app"),
        (["run_app:nothing"], "run_app has no nothing"),
        (["run_app:text"], "gives the str 'no consumer'; give a PushConsumer"),
        (["run_app:idle"], "has no handler"),
        (["run_app:consumer", "run_app:with_asyncio"], "of several kinds"),
    ],
)
def test_what_is_no_consumer_is_named(app: Path, targets: Sequence[str], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_consumers(read_options(run_parser().parse_args(["run", *targets]), {}).targets)
    assert complaint in str(raised.value)


def test_options_come_from_the_command_line_the_environment_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file.env"
    file.write_text("TRIOMQ_RUN_PORT=1000\nTRIOMQ_RUN_PROCESSES=3\nTRIOMQ_RUN_HOST=::\n")
    parsed = run_parser().parse_args(["run", "a:b", "--env-file", str(file), "--processes", "4"])
    options = read_options(parsed, {"TRIOMQ_RUN_PORT": "2000"})
    assert (options.port, options.processes, options.host) == (2000, 4, "::")
    for text in ("0", "x", "257"):
        wrong = run_parser().parse_args(["run", "a:b", "--processes", text])
        with pytest.raises(ConfigError, match="give 1 to 256"):
            read_options(wrong, {})


CHILD = "import os, sys, time; print({!r}, flush=True); {}"


def child(text: str, then: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", CHILD.format(text, then)]


async def test_a_child_that_fails_starts_again_and_wrong_settings_end_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        supervisor_module, "RESTARTS", supervisor_module.BusyBackoff(first=0.01, jitter=0)
    )
    count = tmp_path / "count"
    counting = f"f = open({str(count)!r}, 'ab'); f.write(b'x'); f.close()"
    failing = child("1", f"{counting}; sys.exit(2 if os.path.getsize({str(count)!r}) == 3 else 1)")
    lasting = child("2", "time.sleep(3600)")
    with trio.fail_after(60):
        assert await Supervisor([failing, lasting]).run() == 2
    assert count.read_bytes() == b"xxx"
    texts = [record.message for record in caplog.records]
    assert texts == [
        "process 1 ended with 1: starts again in 0 s",
        "process 1 ended with 1: starts again in 0 s",
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_ends_all_children(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    begun = tmp_path / "begun"
    lasting = child("x", f"open({str(begun)!r}, 'w').close(); time.sleep(3600)")
    supervisor = Supervisor([lasting, lasting])

    async def interrupt() -> None:
        while not begun.exists() or len(supervisor._children) < 2:
            await trio.sleep(0.01)
        os.kill(os.getpid(), number)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            assert await supervisor.run() == code


async def test_a_changed_file_starts_the_children_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("triomq.client.runner.source_changes.POLL_SECONDS", 0.02)
    (tmp_path / ".hidden").mkdir()
    starts = tmp_path / "starts"
    program = tmp_path / "program.py"
    program.write_text(f"open({str(starts)!r}, 'ab').write(b'1'); raise SystemExit(1)")
    command = [sys.executable, "-S", "-E", str(program)]
    supervisor = Supervisor([command], SourceChanges(tmp_path).wait)

    async def until_started(content: bytes) -> None:
        while not starts.exists() or starts.read_bytes() != content:
            await trio.sleep(0.01)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await until_started(b"1")  # it failed, and waits for a change
            (tmp_path / ".hidden" / "other.py").write_text("x")
            (tmp_path / "notes.txt").write_text("x")
            await trio.sleep(0.2)
            program.write_text(
                f"open({str(starts)!r}, 'ab').write(b'2')\nimport time; time.sleep(3600)"
            )
            await until_started(b"12")
            (tmp_path / "new.py").write_text("x")  # it runs, and is stopped first
            await until_started(b"122")
            supervisor._stop()
    assert "program.py has changed: starting again" in caplog.text
    assert "new.py has changed: starting again" in caplog.text


async def test_probes_tell_what_is_missing_and_the_figures_of_each_object(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=2)
    address, port = triomq_cluster.namesrv_address, free_port()
    consumer = PushConsumer(address, group="g", subscriptions="T", consume_from="first")
    reader = PullConsumer(address, group="h")
    producer = Producer(address, group="p")

    async def page(path: str) -> tuple[int, str]:
        return await trio.to_thread.run_sync(get, port, path)

    async with Probes(consumer, producer, reader, port=port):
        assert await page("/ready") == (503, "not ready: PushConsumer of group g is not running\n")
        async with producer, reader, consumer:
            await consumer.wait_assigned()
            await page("/metrics")  # sends are counted from the first scrape on
            for number in range(3):
                await producer.send("T", b"%d" % number, queue=0)
            first = await consumer.__anext__()
            await first.ack()
            while len(consumer._delivery.inbox) < 2:  # type: ignore[union-attr]
                await trio.sleep(0.01)
            text = (await page("/metrics"))[1]
    for line in (
        'triomq_consumer_messages_done_total{group="g",topic="T"} 1',
        'triomq_consumer_messages_pulled_total{group="g",topic="T"} 3',
        'triomq_consumer_messages_in_flight{group="g"} 2',
        'triomq_consumer_messages_waiting{group="g"} 2',
        'triomq_consumer_lag_messages{group="g",topic="T"} 2',
        'triomq_producer_send_seconds_count{group="p"} 3',
        'triomq_producer_sends_in_flight{group="p"} 0',
    ):
        assert line in text.splitlines()
    assert 'triomq_consumer_queues{group="g"} ' in text
    for wrong in ({"port": 0}, {"port": 65_536}):
        with pytest.raises(SettingsError, match="port"):
            Probes(consumer, **wrong)
    with pytest.raises(SettingsError, match="probes are for producers and consumers"):
        Probes("x", port=1)  # type: ignore[arg-type]


async def test_the_figures_of_pop_tell_what_waits_at_the_brokers(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    address, port = triomq_cluster.namesrv_address, free_port()
    async with Producer(address, group="p") as producer:
        for number in range(7):
            await producer.send("T", b"%d" % number)
    async with (
        SimpleConsumer(address, group="g", subscriptions="T", consume_from="first") as consumer,
        Probes(consumer, port=port),
    ):
        received = await consumer.receive(count=3)
        text = (await trio.to_thread.run_sync(get, port, "/metrics"))[1]
        assert f'triomq_consumer_ready_messages{{group="g",topic="T"}} {7 - len(received)}' in text
