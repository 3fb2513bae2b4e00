"""Wrong input in every form: the answer names the field and the mistake in the user's language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from access_callers import ROOT, SETTINGS
from console_pages import PageClient, console_of
from hooked_cluster import hooked_cluster

from triomq.client.console.pages import PAGES
from triomq.remoting.protocol.signing import Credentials

CHINESE = re.compile(r"[\u4e00-\u9fff]")
ALERT = re.compile(r'<(?:p|span) class="[^"]*" role="alert"( lang="en")?>(.*?)</')
HERE = {"name": "orders", "cluster": "DefaultCluster", "subject": "User:root", "topic": "orders"}
TOPIC = {**HERE, "read_queues": "1", "write_queues": "1", "perm": "6"}
RULE = {**HERE, "resource": "Topic:x", "actions": "Pub"}
MOVE = {**HERE, "target": "time", "time": ""}
ASK = {"user": "root", "resource": "Topic:x", "action": "Pub"}
POSTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/topics/create", {}),
    ("/topics/create", {**HERE, "name": "no blanks"}),
    ("/topics/create", {**HERE, "name": "new", "type": "X"}),
    ("/topics/create", {**HERE, "name": "new", "type": "FIFO", "queues": "x"}),
    ("/topics/create", {**HERE, "name": "new", "type": "FIFO", "cluster": ""}),
    ("/topics/create", {**HERE, "name": "new", "type": "FIFO", "cluster": "gone"}),
    ("/topic/update", {**TOPIC, "broker": "gone"}),
    ("/topic/update", {**TOPIC, "read_queues": "x"}),
    ("/topic/update", {**TOPIC, "perm": "9"}),
    ("/topic/delete", {**HERE, "confirm": "order"}),
    ("/topic/send", HERE),
    ("/topic/send", {**HERE, "body": "x", "tag": "a||b"}),
    ("/message/resend", {**HERE, "id": "none"}),
    ("/message/resend", {**HERE, "broker": "b", "queue": "x"}),
    ("/dead-letters/resend", {"group": "g"}),
    ("/dead-letters/resend", {"group": "g", "message": "x"}),
    ("/dead-letters/resend", {"group": "g", "message": ["x"] * 101}),
    ("/group/change", {**HERE, "name": "x" * 121}),
    ("/group/change", {**HERE, "retryMaxTimes": "x"}),
    ("/group/move", {**MOVE, "target": "nowhere"}),
    ("/group/move", {**MOVE, "time": "yesterday"}),
    ("/group/move", {**MOVE, "target": "shift", "by": "x"}),
    ("/group/delete", HERE),
    ("/configuration/change", {}),
    ("/configuration/change", {"key": "brokerPermision", "value": "4"}),
    ("/configuration/change", {"key": "x" * 201}),
    ("/configuration/change", {"key": "x", "server": "192.0.2.1:9"}),
    ("/broker/drain", {**HERE, "confirm": "orders", "address": "192.0.2.1:9"}),
    ("/broker/undrain", {}),
    ("/broker/promote", {**HERE, "confirm": "other"}),
    ("/policies/user", {"name": "guest"}),
    ("/policies/user", {"name": "x" * 256, "password": "x"}),
    ("/policies/user", {"name": "root", "password": "x"}),
    ("/policies/user/update", {"name": "nobody", "status": "enable"}),
    ("/policies/user/delete", {"name": "guest"}),
    ("/policies/rule", {**RULE, "subject": "root"}),
    ("/policies/rule", {**RULE, "subject": "User:nobody"}),
    ("/policies/rule", {**RULE, "resource": "Topic"}),
    ("/policies/rule", {**RULE, "actions": "Fly"}),
    ("/policies/rule", {**RULE, "sources": "nowhere"}),
    ("/policies/rule/delete", {**RULE, "resource": "x"}),
)
GETS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/messages", {**HERE, "begin": "x"}),
    ("/messages", {**HERE, "begin": "2026-01-02T00:00", "end": "2026-01-01T00:00"}),
    ("/dead-letters", {"group": "g", "end": "x"}),
    ("/dead-letters/export", {}),
    ("/group/member", {**HERE, "client": "c", "broker": "192.0.2.1:9"}),
    ("/group/change", {"preview": "1"}),
    ("/group/move", {**MOVE, "time": "yesterday"}),
    ("/group/move", {**MOVE, "target": "shift", "by": "x"}),
    ("/policies", {**ASK, "action": "Fly"}),
    ("/policies", {**ASK, "resource": "Topic:or*"}),
    ("/policies", {**ASK, "from": "nowhere"}),
    ("/broker", {}),
)


async def said(client: PageClient) -> str:
    """Return the text about the mistake; no other language than the page's is in it."""
    found = ALERT.search(client.text)
    assert found is not None, client.text
    assert not found[1], f"a text in English for everybody: {found[2]}"
    return found[2]


def is_kept(page: str, fields: dict[str, Any]) -> bool:
    """Tell whether a page shows a form of a move with what the user wrote."""
    written = [
        f'value="{fields[name]}"' for name in {"name", "topic", "time", "by"} & fields.keys()
    ]
    return 'action="/group/move"' in page and all(one in page for one in written)


@pytest.mark.feature(147)
async def test_what_is_wrong_is_said_in_the_users_language(tmp_path: Path) -> None:
    forms = {page.path for page in PAGES if page.change}
    assert forms == {path for path, _ in POSTS}, "every form that changes something"
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    async with (
        hooked_cluster(tmp_path, (), **SETTINGS) as namesrv,
        console_of(namesrv, tmp_path, credentials=root) as client,
    ):
        await client.log_in("admin")
        with trio.fail_after(10):
            while not client.console.poller.view.brokers:
                await trio.sleep(0.05)
        await client.get("/topics/create")
        await client.post("/topics/create", **HERE, type="NORMAL", queues="1")
        wrong = []
        for language, each in (("zh", 1), ("en", 4)):  # a part of them shows a mixed-up language
            await client.get(f"/preferences?language={language}&next=/")
            for path, fields in POSTS[::each]:
                await client.get("/topics/create")
                await client.post(path, **fields)
                wrong.append((language, path, fields, client.status, await said(client)))
                assert path != "/group/move" or is_kept(client.text, fields)
            for path, fields in GETS[::each]:
                await client.get(f"{path}?{urlencode(fields)}")
                wrong.append((language, path, fields, client.status, await said(client)))
                assert path != "/group/move" or is_kept(client.text, fields)
    assert [one for one in wrong if bool(CHINESE.search(one[-1])) != (one[0] == "zh")] == []
    assert {status for _, _, _, status, _ in wrong} == {400, 502}
