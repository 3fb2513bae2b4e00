"""With ``haAuthentication`` only slaves that know the secret get the log and count as copies."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from replicating import (
    following_slave,
    impatient,
    log_of,
    open_pair,
    quick_config,
    serving_master,
    wait_equal,
    wait_until,
)
from stores import draft, wait_durable

from triomq.broker.options import load_broker_config
from triomq.broker.replication import login as login_module
from triomq.broker.replication.login import LOGIN, ReplicationLogin
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.opening import open_store
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.signing import Credentials

SECRET = ReplicationLogin(Credentials(access_key="brokers", secret_key="a-long-secret"))
WRONG = ReplicationLogin(Credentials(access_key="brokers", secret_key="another-secret"))
OTHER_NAME = ReplicationLogin(Credentials(access_key="broker", secret_key="a-long-secret"))
REPORT = struct.Struct(">q")
HELLO = REPORT.pack(-1)


def proof(side: bytes, slave_number: bytes, master_number: bytes) -> bytes:
    """Return the proof, written down again from the page of the protocol."""
    content = b"TrioMQ HA\0" + side + b"\0brokers\0" + slave_number + master_number
    return hmac.new(b"a-long-secret", content, hashlib.sha256).digest()


async def receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        assert more
        data += more
    return data


async def test_a_slave_that_knows_the_secret_gets_the_log(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as (first, second):
        first.append([draft(b"x" * 500)])
        async with (
            serving_master(first, login=SECRET) as (master, port),
            following_slave(second, port, login=SECRET),
        ):
            await wait_equal(first, second)
            first.append([draft(b"y" * 500)])
            await wait_equal(first, second)
            assert len(master.replicas.replicas) == 1
            assert not master.connection_limits.refused
        assert log_of(first) == log_of(second)


@pytest.mark.feature(211)
@pytest.mark.parametrize("slave_login", [None, WRONG, OTHER_NAME])
async def test_a_slave_that_does_not_know_it_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, slave_login: ReplicationLogin | None
) -> None:
    async with open_pair(tmp_path) as (first, second):
        first.append([draft(b"x" * 500)])
        async with (
            serving_master(first, login=SECRET) as (master, port),
            impatient(first, master) as durability,
            following_slave(second, port, login=slave_login),
        ):
            await wait_until(lambda: master.connection_limits.refused["haAuthentication"])
            first.append([draft(b"y")])
            result = await wait_durable(durability, first.appended.value)
            assert result is DurabilityResult.SLAVE_NOT_AVAILABLE
            assert not master.replicas.replicas
        assert second.appended.value == 0
    assert "is turned away: haAuthentication" in caplog.text
    assert "came to nothing" not in caplog.text, "one line for one refusal"
    assert "a-long-secret" not in caplog.text


async def test_a_slave_with_a_login_does_not_follow_a_master_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pair(tmp_path) as (first, second):
        first.append([draft(b"x" * 500)])
        async with (
            serving_master(first) as (_, port),
            following_slave(second, port, login=SECRET) as slave,
        ):
            await wait_until(lambda: "not following master" in caplog.text)
            assert not slave.following
        assert second.appended.value == 0
    assert "haAuthentication" in caplog.text


async def test_a_master_that_does_not_know_the_secret_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It repeats what the slave has sent, which is all that it can know."""

    async def pretend(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            opening = await receive_exactly(stream, len(LOGIN) + 32)
            await stream.send_all(opening[len(LOGIN) :])
            await stream.send_all(await receive_exactly(stream, 32))
            await stream.send_all(struct.pack(">qi", 0, 4) + b"evil")
            await stream.aclose()

    async with open_store(quick_config(tmp_path)) as store, trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, pretend, 0)
        port = listeners[0].socket.getsockname()[1]
        async with following_slave(store, port, login=SECRET):
            await wait_until(lambda: "does not know the secret" in caplog.text)
        assert store.appended.value == 0
        nursery.cancel_scope.cancel()


def silent(_number: bytes) -> bytes:
    return b""


STRANGERS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "a slave of RocketMQ": (REPORT.pack(0), silent),
    "a slave of TrioMQ without login": (HELLO + REPORT.pack(0), silent),
    "a repeated number of the master": (LOGIN + bytes(32), lambda number: number),
    "the proof of the master": (
        LOGIN + bytes(32),
        lambda number: proof(b"master", bytes(32), number),
    ),
    "the proof of another connection": (
        LOGIN + bytes(32),
        lambda number: proof(b"slave", bytes(32), bytes(32)),
    ),
    "a proof and a report at once": (
        LOGIN + bytes(32),
        lambda number: proof(b"slave", bytes(32), number) + REPORT.pack(0),
    ),
    "a proof that is cut off": (
        LOGIN + bytes(32),
        lambda number: proof(b"slave", bytes(32), number)[:-1],
    ),
}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_what_an_attacker_tries(tmp_path: Path, stranger: str) -> None:
    """None of these gets a byte of the log, or counts."""
    opening, answer = STRANGERS[stranger]
    async with open_store(quick_config(tmp_path)) as store:
        store.append([draft(b"secret body")])
        async with serving_master(store, login=SECRET) as (master, port):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(opening)
                got = b""
                with trio.fail_after(60), contextlib.suppress(trio.BrokenResourceError):
                    if answer is not silent:
                        await stream.send_all(answer(await receive_exactly(stream, 32)))
                        await stream.send_eof()
                    while more := await stream.receive_some():
                        got += more
            await wait_until(lambda: not master.connections)
            assert len(got) in (0, 32), "nothing, or the proof of a master whose peer knows it"
            assert master.connection_limits.refused == {"haAuthentication": 1}
            assert not master.replicas.replicas
            assert master.places.taken == 0


async def test_the_messages_are_those_of_the_page(tmp_path: Path) -> None:
    """A slave that only knows the description logs in, and gets the bare protocol of RocketMQ."""
    async with open_store(quick_config(tmp_path)) as store:
        store.append([draft(b"x")])
        async with (
            serving_master(store, login=SECRET) as (_, port),
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
        ):
            with trio.fail_after(60):
                number = os.urandom(32)
                await stream.send_all(LOGIN + number)
                of_master = await receive_exactly(stream, 32)
                await stream.send_all(proof(b"slave", number, of_master))
                assert await receive_exactly(stream, 32) == proof(b"master", number, of_master)
                await stream.send_all(REPORT.pack(0))
                offset, size = struct.unpack(">qi", await receive_exactly(stream, 12))
                assert (offset, size) == (0, store.appended.value)


async def test_a_peer_that_does_not_complete_the_login_loses_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_module, "LOGIN_SECONDS", 0.05)
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, login=SECRET) as (master, port),
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        with trio.fail_after(60):
            assert await stream.receive_some() == b""
        await wait_until(lambda: not master.connections)
        assert master.connection_limits.refused == {"haAuthentication": 1}


def test_the_setting_needs_the_secret() -> None:
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials"):
        load_broker_config(None, environment={}, definitions=[Entry("haAuthentication", "true")])
