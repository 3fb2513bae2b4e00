"""Servers for official clients of RocketMQ 5, each with brokers of ours."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import access_run
import attrs
import processes
import pytest
import tls_files

JAVA_PROXY_VERSION = "5.5.0"
SETTINGS: dict[str, object] = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": 3000,
    "transactionCheckInterval": 1000,
    "waitTimeMillsInSendQueue": 10_000,
}
"""Of the brokers: SQL filters and recalls are off by default, check-backs come after 6 s, and sends
that wait longer than 200 ms, as on a busy machine, are refused.
"""
LISTEN_SECONDS = 120


@attrs.frozen
class GrpcEndpoint:
    """``address`` speaks gRPC, plain and with TLS; ``namesrv`` leads to the brokers behind it;
    ``ca``: who issued its certificate.
    """

    address: str
    namesrv: str
    ca: Path


@contextmanager
def our_brokers(folder: Path, names: Sequence[str], **more: object) -> Iterator[str]:
    """Run a name server and brokers of ours; yield the name server's address."""
    settings = {**SETTINGS, "grpcServerPort": 0, **more}
    with ExitStack() as stack:
        namesrv = stack.enter_context(processes.our_name_server(folder))
        for name in names:
            stack.enter_context(processes.our_broker(folder / name, name, namesrv, **settings))
        for name in names:
            processes.wait_registered(namesrv, name)
        yield namesrv


def write_proxy_conf(
    folder: Path, namesrv: str, port: int, tls: tls_files.Files, **more: object
) -> Path:
    """Write the file rmq-proxy.json, which Java's proxy and ours read."""
    conf = folder / "conf" / "rmq-proxy.json"
    conf.parent.mkdir(parents=True)
    settings = {
        "rocketMQClusterName": "TestCluster",
        "namesrvAddr": namesrv,
        "grpcServerPort": port,
        "tlsTestModeEnable": False,
        "tlsCertPath": str(tls.certificate),
        "tlsKeyPath": str(tls.key),
        **more,
    }
    conf.write_text(json.dumps(settings))
    return conf


@contextmanager
def java_proxy_before_ours(folder: Path) -> Iterator[GrpcEndpoint]:
    home = processes.PEERS / f"rocketmq-proxy-{JAVA_PROXY_VERSION}"
    if not (home / ".complete").exists():
        pytest.skip("Java's proxy is not installed: run `make peers`")
    port, proxy, tls = (
        processes.free_port(span=2),
        folder / "proxy",
        tls_files.write(folder / "tls"),
    )
    with our_brokers(folder, ["broker-a", "broker-b"]) as namesrv:
        more: dict[str, object] = {"proxyMode": "CLUSTER", "remotingListenPort": port + 1}
        if access_run.ON:
            more["enableAclRpcHookForClusterMode"] = True
        conf = write_proxy_conf(proxy, namesrv, port, tls, **more)
        if access_run.ON:
            (conf.parent / "tools.yml").write_text(access_run.CREDENTIALS)
        command = ["java", "-Xmx512m", "-Xms64m", *processes.QUICK_JAVA, f"-Duser.home={proxy}"]
        command += [f"-Drocketmq.home.dir={proxy}"]
        command += ["-cp", f"{home}/jars/*", "org.apache.rocketmq.proxy.ProxyStartup"]
        log, environment = proxy / "proxy.log", {"RMQ_PROXY_HOME": str(proxy)}
        with processes.running([*command, "-pc", str(conf)], log, env=environment) as process:
            processes.wait_listening(port, process, log, LISTEN_SECONDS)
            yield GrpcEndpoint(f"127.0.0.1:{port}", namesrv, tls.ca)


@contextmanager
def our_broker_itself(folder: Path) -> Iterator[GrpcEndpoint]:
    """One broker: the routes that it gives have no other."""
    port, tls = processes.free_port(), tls_files.write(folder / "tls")
    more = {"tls.server.certPath": tls.certificate, "tls.server.keyPath": tls.key}
    with our_brokers(folder, ["broker-a"], grpcServerPort=port, **more) as namesrv:
        yield GrpcEndpoint(f"127.0.0.1:{port}", namesrv, tls.ca)


@contextmanager
def our_proxy(folder: Path) -> Iterator[GrpcEndpoint]:
    port, tls = processes.free_port(), tls_files.write(folder / "tls")
    with our_brokers(folder, ["broker-a", "broker-b"]) as namesrv:
        settings = access_run.PROXY_SETTINGS
        conf = write_proxy_conf(folder / "proxy", namesrv, port, tls, **settings)
        command = [sys.executable, "-m", "triomq.client.proxy", "-pc", str(conf)]
        log = folder / "proxy" / "proxy.log"
        with processes.running(command, log, env={**os.environ, "HOME": str(folder)}) as process:
            processes.wait_listening(port, process, log, LISTEN_SECONDS)
            yield GrpcEndpoint(f"127.0.0.1:{port}", namesrv, tls.ca)


ENDPOINTS: dict[str, Callable[[Path], AbstractContextManager[GrpcEndpoint]]] = {
    "java-proxy": java_proxy_before_ours,
    "broker": our_broker_itself,
    "mqproxy": our_proxy,
}
"""Name of the endpoint -> what runs it for a block."""
