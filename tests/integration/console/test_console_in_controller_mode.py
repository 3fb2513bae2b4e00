"""The console of a group in controller mode: sets, epochs and lag; the master is moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from console_pages import PageClient, console_of
from controlled_group import NAME, ControlledGroup, controlled_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


async def page_with(group: ControlledGroup, client: PageClient, path: str, text: str) -> str:
    """Load a page until it holds a text."""

    async def holds() -> bool:
        client.console.poller.refresh_soon()
        return text in await client.get(path)

    await group.until(holds, lambda: client.text)
    return client.text


@pytest.mark.feature(147)
async def test_the_master_is_moved_and_sets_epochs_and_lag_are_shown(tmp_path: Path) -> None:
    async with controlled_group(tmp_path) as group, console_of(group.namesrv, tmp_path) as client:
        await group.settled(1, {1, 2})
        await group.send_until_ok(1, "T", b"x")
        await client.log_in("admin")
        pages = {
            number: f"/broker?address={broker.address}" for number, broker in group.brokers.items()
        }
        await page_with(group, client, pages[1], "2 in the sync state set, master epoch 1.")
        assert "/broker/drain" in client.text
        assert "no confirmed message is lost" in client.text, "what it costs"
        await page_with(group, client, "/brokers", "Behind its master 0 B")
        assert "Slaves behind, at most" in await client.get("/")
        await client.get("/brokers")
        assert client.text.count(">in the set</span>") == 2
        await page_with(group, client, pages[2], "Make this the master")
        slave = group.brokers[2].address
        wrong = {"address": slave, "name": NAME, "confirm": "broker-b"}
        await client.post("/broker/promote", **wrong)
        assert client.status == 400
        await client.get(pages[2])
        await client.post("/broker/promote", **{**wrong, "confirm": NAME})
        assert f"{slave} becomes the master of {NAME}." in await client.follow()
        assert (await group.settled(2, {1, 2})).master_epoch == 2
        await page_with(group, client, pages[2], "Move the master away")
        await client.post("/broker/drain", **{**wrong, "confirm": NAME})
        assert "becomes the master. Stop this one" in await client.follow()
        await group.settled(1, {1, 2})
        changes = [one["action"] for one in client.audit() if one["outcome"] == "done"]
        assert changes[-2:] == ["broker.promote", "broker.drain"]
        await group.brokers[2].end(9)
        await group.settled(1, {1})
        await page_with(group, client, pages[2], "It cannot become the master")
        assert "/broker/promote" not in client.text
        await client.post("/broker/promote", **{**wrong, "confirm": NAME})
        assert client.status == 502, "it does not answer"
