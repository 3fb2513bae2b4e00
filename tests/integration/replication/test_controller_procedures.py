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
from controlled_group import WAIT_SECONDS, brokers_of, controlled_group, controller_alone
from controller_processes import controller_processes
from processes import ROOT

from triomq import Producer, ProducerSettings, SendFailed

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

EARLIER_COMMITS = 50


async def test_a_group_moves_to_other_controllers_with_all_its_messages(tmp_path: Path) -> None:
    """Stopped, and without the ids and epochs that the earlier controller gave."""
    sent = [b"%d" % number for number in range(20)]
    async with controlled_group(tmp_path) as group:
        for body in sent:
            await group.send_until_ok(1, "T", body)
        for number in (2, 1):  # the master last
            await group.brokers[number].end(signal.SIGTERM)
    with controller_processes(tmp_path / "three") as three:
        three.leader()
        async with brokers_of(tmp_path, three.name_servers, three.addresses) as group:
            for number in (1, 2):
                store = tmp_path / f"broker-{number}" / "store"
                for name in ("brokerIdentity", "epochFileCheckpoint"):
                    (store / name).unlink()
                await group.add(number, minInSyncReplicas=1).start()
                await group.settled(1, set(range(1, number + 1)))
            await group.send_until_ok(1, "T", b"next")
            await group.brokers[1].end(signal.SIGKILL)
            await group.settled(2, {2})
            await group.send_until_ok(2, "T", b"last")
            assert await group.bodies(2, "T", 22) == [*sent, b"next", b"last"]


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
