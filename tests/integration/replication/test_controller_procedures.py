"""What operators do to a whole group in controller mode: other controllers, another version."""

from __future__ import annotations

import io
import signal
import subprocess
import tarfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from controlled_group import WAIT_SECONDS, brokers_of, controller_alone
from controller_processes import IDS, controller_processes
from mqadmin_calls import mqadmin
from processes import ROOT

from triomq import Producer, ProducerSettings, SendFailed
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.controller import ControllerMetadataHeader

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

EARLIER_COMMITS = 50


async def test_brokers_go_on_while_their_controllers_are_replaced(tmp_path: Path) -> None:
    """A fourth controller comes, the first one goes, and the one that leads then is killed."""
    sent = [b"%d" % number for number in range(20)]
    with controller_processes(tmp_path / "controllers") as controllers:
        controllers.leader()
        async with brokers_of(tmp_path, controllers.name_servers, controllers.addresses) as group:
            for number in (1, 2):
                await group.add(number, minInSyncReplicas=1).start()
                await group.settled(1, set(range(1, number + 1)))
            for body in sent:
                await group.send_until_ok(1, "T", body)
            controllers.start("n3", (*IDS, "n3"))
            for words in (("add", f"n3-{controllers.address('n3')}"), ("remove", "n0")):
                done = await mqadmin("controller", *words, "-a", controllers.addresses)
                assert (done.code, done.err) == (0, ""), done
            assert "n0:" not in done.out
            assert f"n3:{controllers.address('n3')}" in done.out
            controllers.kill("n0")
            controllers.kill(controllers.leader())
            leader = await trio.to_thread.run_sync(controllers.leader)
            await group.send_until_ok(1, "T", b"next")
            await group.brokers[1].end(signal.SIGKILL)
            await group.settled(2, {2})
            await group.send_until_ok(2, "T", b"last")
            assert await group.bodies(2, "T", 22) == [*sent, b"next", b"last"]
            said = controllers.try_at(leader, request(Code.CONTROLLER_GET_METADATA_INFO))
            assert said is not None
            peers = said.header(ControllerMetadataHeader).peers or ""
            assert [one.partition(":")[0] for one in peers.split(";")[:-1]] == ["n1", "n2", "n3"]


def earlier_tree(folder: Path) -> Path:
    """The product as it was some commits ago."""
    words = ("git", "-C", str(ROOT), "archive", f"HEAD~{EARLIER_COMMITS}")
    try:
        archive = subprocess.run(words, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a clone with enough commits")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="tar")
    return folder


async def test_brokers_of_two_versions_lose_nothing_while_each_is_replaced(tmp_path: Path) -> None:
    """An upgrade under load, one broker after the other, and the way back."""
    old = ("env", f"--chdir={earlier_tree(tmp_path / 'earlier')}")
    sent: list[bytes] = []
    async with controller_alone(tmp_path) as group:
        commands = {}
        for number in (1, 2, 3):
            broker = group.add(number)
            commands[number] = broker.command
            broker.command = (*old, *broker.command)
            await broker.start()
            await group.settled(1, set(range(1, number + 1)))
        await group.send_until_ok(1, "T", b"first")
        settings = ProducerSettings(send_timeout=WAIT_SECONDS)
        async with (
            Producer(group.namesrv, group="p", settings=settings) as p,
            trio.open_nursery() as nursery,
        ):

            async def send() -> None:
                while True:
                    body = b"%d" % len(sent)
                    with suppress(SendFailed):  # it may be stored: it is sent once more
                        await p.send("T", body, queue=0)
                        sent.append(body)
                    await trio.sleep(0.005)

            async def some_sent(count: int) -> bool:
                return len(sent) >= count

            nursery.start_soon(send)
            for words in ((), old):
                for number, command in commands.items():
                    await group.until(partial(some_sent, len(sent) + 20))
                    await group.brokers[number].end(signal.SIGTERM)
                    group.brokers[number].command = (*words, *command)
                    await group.brokers[number].start()
                    await group.settled(None, {1, 2, 3})
            await group.until(partial(some_sent, len(sent) + 20))
            nursery.cancel_scope.cancel()
        state = await group.state()
        assert state is not None
        (master,) = (
            number
            for number, broker in group.brokers.items()
            if broker.address == state.master_address
        )
        found, count = set[bytes](), len(sent)
        while not found >= set(sent):  # there are more of them than there are bodies
            found |= set(await group.bodies(master, "T", count))
            count += 1
