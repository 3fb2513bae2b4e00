"""The fast port (VIP channel): a second port of the broker for clients that only send; it refuses
requests that read.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import attrs
import processes
import pytest
import trio
from brokers import broker_config, peer_of, running_broker

from triomq.broker.addresses import reserved_ports
from triomq.broker.config import FAST_PORT_BELOW
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.server.listen import AddressInUse, open_listener

READERS = (
    Code.PULL_MESSAGE,
    Code.LITE_PULL_MESSAGE,
    Code.PEEK_MESSAGE,
    Code.POP_MESSAGE,
    Code.NOTIFICATION,
    Code.POLLING_INFO,
)


async def test_it_takes_messages_and_gives_none(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as main:
        async with peer_of(attrs.evolve(ready, port=ready.port - FAST_PORT_BELOW)) as fast:
            await main.create_topic("T", 1)
            for number in range(3):
                assert (await fast.send("T", b"%d" % number)).queue_offset == number
            for code in READERS:
                refused = await fast.call(code)
                assert (refused.code, refused.remark) == (
                    3,
                    f" request type {int(code)} not supported",
                )
            assert (await fast.call(Code.GET_ALL_TOPIC_CONFIG)).code == 0  # a Java slave asks here
            await fast.heartbeat("sender", producers=("P",))
            assert (await main.pull("T")).bodies == [b"0", b"1", b"2"]


async def test_the_same_pools_serve_it(tmp_path: Path) -> None:
    """What waits for the disk on one port counts on the other: one pool, one order, one limit."""
    async with (
        running_broker(
            tmp_path,
            sendThreadPoolQueueCapacity=1,
            sendMessageThreadPoolNums=1,
            flushDiskType="SYNC_FLUSH",
        ) as ready,
        peer_of(ready) as main,
    ):
        async with peer_of(attrs.evolve(ready, port=ready.port - FAST_PORT_BELOW)) as fast:
            await main.create_topic("T", 1)
            codes = []

            async def send(number: int) -> None:
                codes.append((await (main, fast)[number % 2].send_raw("T")).code)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(send, number)
            assert set(codes) <= {0, 2}
            assert codes.count(0) == len((await main.pull("T", count=32)).bodies)


async def test_it_can_be_elsewhere_or_nowhere(tmp_path: Path) -> None:
    port = processes.free_port()
    async with running_broker(tmp_path / "a", fastListenPort=port) as ready:
        async with peer_of(attrs.evolve(ready, port=port)) as fast:
            await fast.heartbeat("sender", producers=("P",))
    async with running_broker(tmp_path / "b", fastListenPort=0) as ready:
        with pytest.raises(OSError, match="failed"):
            await trio.open_tcp_stream("127.0.0.1", ready.port - FAST_PORT_BELOW)


def test_with_port_0_all_ports_are_free_ones(tmp_path: Path) -> None:
    with reserved_ports(broker_config(tmp_path)) as config:
        assert config.listen_port > 0
        assert config.fast_listen_port() == config.listen_port - FAST_PORT_BELOW
        assert len({config.listen_port, config.fast_listen_port(), config.ha_port, 0}) == 4
    with reserved_ports(broker_config(tmp_path, fastListenPort=0)) as config:
        assert config.fast_listen_port() == 0
    with reserved_ports(broker_config(tmp_path, listenPort=5, haListenPort=0)) as config:
        assert config.listen_port == 5
        assert config.ha_port > 0
    assert broker_config(tmp_path, listenPort=2).fast_listen_port() == 0  # there is no port 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the ports are found, not reserved")
def test_reserved_ports_are_given_to_listeners_only(tmp_path: Path) -> None:
    with reserved_ports(broker_config(tmp_path)) as config:
        for port in (config.listen_port, config.fast_listen_port(), config.ha_port):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            with open_listener("127.0.0.1", port, 1) as listener:
                assert listener.getsockname()[1] == port
    with socket.socket() as other:
        other.bind(("127.0.0.1", config.listen_port))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the ports are found, not reserved")
def test_a_port_of_before_is_not_found_again_for_the_replication(tmp_path: Path) -> None:
    port = processes.free_port()
    with reserved_ports(broker_config(tmp_path, listenPort=port, haListenPort=0)) as config:
        assert config.ha_port != port
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with open_listener("127.0.0.1", port, 1) as listener:
            assert listener.getsockname()[1] == port


async def test_a_taken_fast_port_names_its_setting(tmp_path: Path) -> None:
    port = processes.free_port()
    with socket.create_server(("127.0.0.1", port - FAST_PORT_BELOW)):
        with pytest.raises(ExceptionGroup) as caught:
            async with running_broker(tmp_path, listenPort=port):
                raise AssertionError("it started")
        assert caught.group_contains(
            AddressInUse,
            match=rf"127\.0\.0\.1:{port - FAST_PORT_BELOW}: .* set fastListenPort to another port",
        )
        conf = processes.write_broker_conf(
            tmp_path / "process", "broker-a", "127.0.0.1:9", port, bindAddress="127.0.0.1"
        )
        command = [sys.executable, "-m", "triomq.broker", "-c", str(conf)]
        done = await trio.run_process(
            command,
            capture_stderr=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ),
        )
        assert done.returncode == 3
        assert done.stderr.decode().splitlines()[-1] == (
            f"mqbroker: cannot listen on 127.0.0.1:{port - FAST_PORT_BELOW}: the port is in use; "
            "stop the process that holds it or set fastListenPort to another port"
        )


async def test_its_stages_have_names_of_their_own(tmp_path: Path) -> None:
    """A task dump tells the two ports apart."""
    names: set[str] = set()

    class Names(trio.abc.Instrument):
        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            names.add(task.name)

    trio.lowlevel.add_instrument(instrument := Names())
    async with running_broker(tmp_path):
        trio.lowlevel.remove_instrument(instrument)
    assert {
        "boss",
        "boss-fast",
        "selector-0",
        "selector-fast",
        "codec-0",
        "codec-fast",
        "pool-send-0",
        "pool-ack-0",
    } <= names
