"""A group of master and slave that changes to controller mode with its folders, and back."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from controlled_group import NAME, ControlledGroup, controller_alone
from monitor_pages import get
from replicated_brokers import log_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLASSIC = ("brokerId", "brokerRole")
CONTROLLED = ("enableControllerMode", "controllerAddr")


def to_classic(group: ControlledGroup, number: int, role: str, broker_id: int) -> None:
    change(group, number, CONTROLLED, {"brokerRole": role, "brokerId": broker_id})


def to_controllers(group: ControlledGroup, number: int) -> None:
    change(
        group,
        number,
        CLASSIC,
        {"enableControllerMode": "true", "controllerAddr": group.controllers},
    )


def change(
    group: ControlledGroup, number: int, without: tuple[str, ...], values: dict[str, object]
) -> None:
    conf = group.folder / f"broker-{number}" / f"{NAME}.conf"
    lines = [
        line
        for line in conf.read_text().splitlines()
        if line.partition("=")[0] not in (*without, *values)
    ]
    lines += [f"{key}={value}" for key, value in values.items()]
    conf.write_text("\n".join(lines) + "\n")


@asynccontextmanager
async def controllers_and_two(folder: Path) -> AsyncIterator[ControlledGroup]:
    """A controller, and two brokers that are not started."""
    async with controller_alone(folder) as group:
        for number in (1, 2):
            group.add(number)
        yield group


async def test_a_classic_group_changes_to_controller_mode_and_back_and_again(
    tmp_path: Path,
) -> None:
    sent: list[bytes] = []

    async def take(group: ControlledGroup, number: int, what: str) -> None:
        for count in range(5):
            sent.append(f"{what} {count}".encode())
            await group.send_until_ok(number, "T", sent[-1])
        found: list[bytes] = []
        while not found or found[-1] != sent[-1]:  # a send that was tried again may be there twice
            found = await group.bodies(number, "T", len(found) + 1)
        assert list(dict.fromkeys(found)) == sent

    async def stop(group: ControlledGroup) -> None:
        for broker in group.brokers.values():
            await broker.end(signal.SIGTERM)
        stores = [tmp_path / f"broker-{number}" / "store" for number in (1, 2)]
        assert log_bytes(stores[0]) == log_bytes(stores[1])

    async with controllers_and_two(tmp_path) as group:
        masters = iter((1, 2, 1))
        for turn in range(2):
            master = next(masters)
            for number in (1, 2):
                role = "SYNC_MASTER" if number == master else "SLAVE"
                to_classic(group, number, role, int(number != master))
            for number in (master, 3 - master):
                await group.brokers[number].start()
            await take(group, master, f"classic {turn}")
            await stop(group)
            for number in (1, 2):
                to_controllers(group, number)
            await group.brokers[master].start()
            await group.settled(master, {master})
            await group.brokers[3 - master].start()
            await group.settled(master, {1, 2})
            await take(group, master, f"controlled {turn}")
            await group.brokers[master].end(signal.SIGKILL)
            await group.settled(3 - master, {3 - master})
            await group.brokers[master].start()
            await group.settled(3 - master, {1, 2})
            await take(group, 3 - master, f"failed over {turn}")
            await stop(group)


@pytest.mark.parametrize(
    ("before", "lost", "kept"),
    [
        ("controlled", 5, 5),
        pytest.param("classic", 5, 5, marks=pytest.mark.nightly),
        pytest.param("classic", 3, 9, marks=pytest.mark.nightly),
        pytest.param("classic", 9, 3, marks=pytest.mark.nightly),
    ],
)
async def test_logs_that_parted_in_classic_mode_are_not_mixed(
    tmp_path: Path, before: str, lost: int, kept: int
) -> None:
    """The old master's tail is on its disk only, and the promoted slave has taken others since."""
    async with controllers_and_two(tmp_path) as group:
        if before == "controlled":
            for number in (1, 2):
                await group.brokers[number].start()
                await group.settled(1, set(range(1, number + 1)))
            await group.send_until_ok(1, "T", b"controlled")
            for number in (1, 2):
                await group.brokers[number].end(signal.SIGTERM)
        to_classic(group, 1, "SYNC_MASTER", 0)
        to_classic(group, 2, "SLAVE", 1)
        for number in (1, 2):
            await group.brokers[number].start()
        await group.send_until_ok(1, "T", b"both")
        await group.brokers[2].end(signal.SIGKILL)
        for number in range(lost):
            await group.peer(1).send_raw("T", b"lost %d" % number)
        await group.brokers[1].end(signal.SIGKILL)
        to_classic(group, 2, "ASYNC_MASTER", 0)
        await group.brokers[2].start()
        for number in range(kept):
            await group.send_until_ok(2, "T", b"kept %d" % number)
        await group.brokers[2].end(signal.SIGTERM)
        for number in (1, 2):
            to_controllers(group, number)
        await group.brokers[2].start()
        await group.settled(2, {2})
        await group.brokers[1].start()

        async def refuses() -> bool:
            return "not following master" in group.brokers[1].log.read_text()

        await group.until(refuses)
        assert (await get(group.monitors[1], "/ready"))[0] == 503
        found = await group.settled(2, {2})
        assert [replica.alive for replica in found.not_in_sync_replicas] == [True]
