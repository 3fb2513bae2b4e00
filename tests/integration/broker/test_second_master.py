"""A master whose name another living master has does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import broker_config
from replicated_brokers import broker_group
from silent_servers import silent_broker, silent_server

from triomq.broker.app import run_broker
from triomq.broker.command_line import broker_parser
from triomq.broker.options import read_options
from triomq.broker.roles.second_master import SecondMaster


async def test_the_old_master_does_not_take_the_route_of_a_promoted_one(tmp_path: Path) -> None:
    """It took the route back, and what the promoted one had stored was seen by nobody."""
    async with broker_group(tmp_path) as group:
        promoted = await group.start(0)
        second = broker_config(tmp_path / "old", namesrvAddr=group.namesrv)
        with pytest.raises(SecondMaster, match=r"brokerRole=SLAVE.*--force") as caught:
            await run_broker(second)
        assert caught.value.address == promoted.ready.address
        forced = broker_config(
            tmp_path / "old", namesrvAddr=group.namesrv, startBesideMaster=True, haListenPort=0
        )
        async with trio.open_nursery() as nursery:
            ready = await nursery.start(run_broker, forced)
            ready.stop()


async def test_one_that_is_gone_does_not_matter(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        first = await group.start(0)
        await first.crash()
        again = await group.start(0)
        assert again.ready.address != first.ready.address


async def test_one_that_hangs_may_go_on_at_any_moment(tmp_path: Path) -> None:
    async with (
        broker_group(tmp_path) as group,
        silent_broker(group.namesrv, ["T"], name="broker-a") as address,
    ):
        config = broker_config(tmp_path / "new", namesrvAddr=group.namesrv)
        with trio.fail_after(20), pytest.raises(SecondMaster, match=address):
            await run_broker(config)


async def test_name_servers_that_are_silent_do_not_keep_a_broker_from_its_start(
    tmp_path: Path,
) -> None:
    async with trio.open_nursery() as nursery:
        with silent_server() as port, trio.fail_after(20):
            config = broker_config(tmp_path, namesrvAddr=f"127.0.0.1:{port}")
            ready = await nursery.start(run_broker, config)
            ready.stop()


def test_the_option_is_a_setting(tmp_path: Path) -> None:
    parsed = broker_parser().parse_args(["--force"])
    assert read_options(parsed, {}).config.start_beside_master
    assert not read_options(broker_parser().parse_args([]), {}).config.start_beside_master
