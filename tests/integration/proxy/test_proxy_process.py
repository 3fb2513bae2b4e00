"""``mqproxy`` as a process: options, exit codes, one-line errors, probes, an orderly stop."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import trio
from grpc_broker import GrpcClient
from processes import free_port
from proxied_cluster import proxied_cluster

from triomq.remoting.core.properties_file import parse_properties
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.service import PATH

READY = re.compile(r"mqproxy: proxy ready on [^ ]*:(\d+)\n")
NOWHERE = "127.0.0.1:1"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "triomq.client.proxy", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"},
        stdin=subprocess.DEVNULL,
    )


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a proxy; yield it and its port."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        match = READY.fullmatch(process.stdout.readline())
        assert match is not None, process.stderr.read()
        yield process, int(match[1])
    finally:
        process.kill()
        process.communicate()


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:  # Python 3.14 warns of one that is not closed
            return error.code, error.read().decode()


def test_java_s_json_file_is_read_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    settings = {
        "rocketMQClusterName": "TestCluster",
        "proxyMode": "CLUSTER",
        "namesrvAddr": "192.0.2.1:9876",
        "grpcServerPort": 8081,
        "useEndpointPortFromRequest": True,
        "grpcThreadPoolNums": 64,
    }
    file.write_text(json.dumps(settings))
    printed = run("-pc", str(file), "-n", "192.0.2.2:9876", "-DgrpcServerPort=9081", "-p")
    assert printed.returncode == 0, printed.stderr
    values = parse_properties(printed.stdout)
    assert (values["namesrvAddr"], values["grpcServerPort"]) == ("192.0.2.2:9876", "9081")
    assert values["rocketMQClusterName"] == "TestCluster"
    assert values["useEndpointPortFromRequest"] == "true"
    again = tmp_path / "again.properties"
    again.write_text(printed.stdout)
    assert run("-c", str(again), "-p").stdout == printed.stdout


@pytest.mark.feature("149d")
@pytest.mark.parametrize(
    ("content", "arguments", "line"),
    [
        (
            '{"proxyMode": "LOCAL"}',
            (),
            r"rmq-proxy\.json: proxyMode=LOCAL is not offered.*mqbroker",
        ),
        ("{}", ("-pm", "local"), r"option -pm: proxyMode=local is not offered"),
        ('{"grpcServerPor": 1}', (), r"unknown key grpcServerPor; did you mean grpcServerPort\?"),
        ('{"grpcServerPort": [1]}', (), r"grpcServerPort is \[1\]; give it a text or a number"),
        ("[]", (), r"rmq-proxy\.json: is not a JSON object"),
        ("{", (), r"rmq-proxy\.json: is not JSON"),
        (
            '{"authorizationEnabled": true}',
            (),
            r"authorizationEnabled=true without authenticationEnabled",
        ),
        ('{"grpcServerPort": 70000}', (), r"grpcServerPort=70000: out of range"),
        ("{}", (), "no name server is configured"),
        (
            f'{{"namesrvAddr": "{NOWHERE}", "tlsCertPath": "/nowhere/a.crt", "tlsKeyPath": "b"}}',
            (),
            "/nowhere/a.crt",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(
    tmp_path: Path, content: str, arguments: tuple[str, ...], line: str
) -> None:
    file = tmp_path / "rmq-proxy.json"
    file.write_text(content)
    ended = run("-pc", str(file), "--log-dir", str(tmp_path), *arguments)
    assert ended.returncode == 2, ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("mqproxy: ")
    assert re.search(line, ended.stderr), ended.stderr


def test_a_taken_port_is_exit_code_3(tmp_path: Path) -> None:
    with started("-n", NOWHERE, "-DgrpcServerPort=0") as (_, port):
        ended = run("-n", NOWHERE, f"-DgrpcServerPort={port}", "--log-dir", str(tmp_path))
        assert ended.returncode == 3, ended
        assert "grpcServerPort" in ended.stderr


def test_it_is_not_ready_without_name_server() -> None:
    monitor = free_port()
    with started("-n", NOWHERE, "-DgrpcServerPort=0", f"-DmonitorPort={monitor}"):
        assert page(monitor, "/live")[0] == 200
        status, text = page(monitor, "/ready")
        assert status == 503
        assert "no name server answered" in text


@pytest.mark.feature("149c")
async def test_probes_calls_and_an_orderly_stop(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster:
        await trio.to_thread.run_sync(_work_and_stop, tmp_path, cluster.namesrv)


def _work_and_stop(folder: Path, namesrv: str) -> None:
    configured, monitor = free_port(), free_port()
    settings = {
        "namesrvAddr": namesrv,
        "grpcServerPort": configured,
        "bindAddress": "127.0.0.1",
        "monitorPort": monitor,
    }
    file = folder / "rmq-proxy.json"
    file.write_text(json.dumps(settings))
    with started("-pc", str(file)) as (process, port):
        assert port == configured
        assert page(monitor, "/ready")[0] == 200
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            client = GrpcClient(channel, "probe")
            sent = trio.run(client.send, client.message(b"one"))
            assert sent.status.code == pb.Code.OK, sent
            facts = json.loads(page(monitor, "/status")[1])
            assert (facts["clients"], facts["brokers"]) == (1, 2)
            metrics = page(monitor, "/metrics")[1].splitlines()
            assert any(
                line.startswith("rocketmq_proxy_up{") and 'node_type="proxy"' in line
                for line in metrics
            )
            (calls,) = (
                line
                for line in metrics
                if line.startswith("triomq_grpc_calls_total{") and "SendMessage" in line
            )
            assert calls.endswith(" 1"), calls
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Although a call is open, which the first signal leaves time for."""
    async with proxied_cluster(tmp_path) as cluster:
        await trio.to_thread.run_sync(_stop_twice, cluster.namesrv)


def _stop_twice(namesrv: str) -> None:
    options = ["-DgrpcServerPort=0", "-DbindAddress=127.0.0.1", "-DgrpcShutdownTimeSeconds=50"]
    with (
        started("-n", namesrv, *options) as (process, port),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_unary(f"{PATH}SendMessage").future(iter(requests.get, None))
        client = GrpcClient(channel, "probe")
        trio.run(client.send, client.message(b"one"))  # the open call has arrived before it
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        assert not call.done()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        requests.put(None)
