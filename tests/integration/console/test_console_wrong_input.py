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

from triomq.client.admin.cluster_view import BrokerRow
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


UNSHOWN = {
    ("/topics/create", "cluster"),  # a choice that does not exist
    ("/topic/update", "broker"),
    ("/topic/update", "perm"),
    ("/topic/update", "read_queues"),  # of a broker that the form does not name
    # What the form is about does not exist, or it has just a button: there is no form to show.
    *((path, path) for path in ("/message/resend", "/configuration/change", "/group/member")),
    *((path, path) for path in ("/broker", "/broker/drain", "/broker/undrain", "/broker/promote")),
    *((path, path) for path in ("/policies/rule/delete", "/dead-letters/export")),
}


async def said(client: PageClient) -> str:
    """Return the text about the mistake; no other language than the page's is in it."""
    found = ALERT.search(client.text)
    assert found is not None, client.text
    assert not found[1], f"a text in English for everybody: {found[2]}"
    return found[2]


def not_kept(page: str, path: str, fields: dict[str, Any]) -> list[str]:
    """Return what the user wrote, except passwords, and the form that was sent does not show."""
    form = re.search(rf'<form method="\w+" action="{path}".*?</form>', page, re.DOTALL)
    if form is None:
        return [path]
    shown = {
        *re.findall(r'name="(\w+)"(?: type="[\w-]+")? value="([^"]*)"', form[0]),
        *re.findall(r'<select name="(\w+)".*?<option value="([^"]*)" selected', form[0]),
        *re.findall(r'<textarea name="(\w+)"[^>]*>\n([^<]*)', form[0]),
    }
    asked = {name for name, _ in shown}
    return [name for name in asked & fields.keys() if (name, fields[name]) not in shown]


def about(broker: BrokerRow) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return wrong forms about a broker that exists, and one that it refuses itself."""
    named = {"address": broker.address, "name": broker.name}
    return (
        ("/topic/update", {**TOPIC, "broker": broker.name, "read_queues": "x", "perm": "4"}),
        ("/topic/update", {**TOPIC, "broker": broker.name, "write_queues": "0", "perm": "2"}),
        ("/broker/drain", {**named, "confirm": "another"}),
        ("/configuration/change", {"key": "brokerPermission", "value": "sideways"}),
    )


@pytest.mark.feature(147)
async def test_a_refused_form_about_a_broker_keeps_what_the_user_wrote(tmp_path: Path) -> None:
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
        statuses = []
        for path, fields in about(client.console.poller.view.brokers[0]):
            await client.get("/topics/create")
            await client.post(path, **fields)
            assert not_kept(client.text, path, fields) == [], client.text
            assert 'role="alert"' in client.text
            statuses.append(client.status)
    assert statuses == [400, 400, 400, 502]


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
        wrong: list[tuple[str, str, dict[str, Any], int, str]] = []
        lost: list[tuple[str, dict[str, Any], str]] = []
        for language, each in (("zh", 1), ("en", 4)):  # a part of them shows a mixed-up language
            await client.get(f"/preferences?language={language}&next=/")
            for path, fields in POSTS[::each]:
                await client.get("/topics/create")
                await client.post(path, **fields)
                wrong.append((language, path, fields, client.status, await said(client)))
                lost += [(path, fields, one) for one in not_kept(client.text, path, fields)]
            for path, fields in GETS[::each]:
                await client.get(f"{path}?{urlencode(fields)}")
                wrong.append((language, path, fields, client.status, await said(client)))
                lost += [(path, fields, one) for one in not_kept(client.text, path, fields)]
    assert [one for one in wrong if bool(CHINESE.search(one[-1])) != (one[0] == "zh")] == []
    assert {status for _, _, _, status, _ in wrong} == {400, 502}
    assert {(path, name) for path, _, name in lost} == UNSHOWN
