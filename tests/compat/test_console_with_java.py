"""The console at a Java cluster whose brokers check passwords and permissions: its users log in,
and the pages work as they do at ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
import trio
from console_pages import PageClient, console_of, other_browser

from triomq.client.admin.admin import Admin
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.signing import Credentials

pytestmark = pytest.mark.compat
ROOT = Credentials(access_key="rocketmq2", secret_key="12345678")
AUTH = "org.apache.rocketmq.auth"
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"rocketmq2","password":"12345678"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"rocketmq2","secretKey":"12345678"}',
}


@pytest.fixture(params=["RocketMQ 5.5.0", "TrioMQ"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "TrioMQ":
        with (
            processes.our_name_server(tmp_path / "namesrv") as namesrv,
            processes.our_broker(tmp_path, "broker-java", namesrv, **SETTINGS),
        ):
            yield namesrv
        return
    if processes.java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    settings = {
        **SETTINGS,
        "authenticationMetadataProvider": (
            f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
        ),
        "authorizationMetadataProvider": (
            f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
        ),
        "authConfigPath": str(tmp_path / "auth"),
    }
    with (
        processes.java_name_server("5.5.0", tmp_path / "namesrv") as namesrv,
        processes.java_broker("5.5.0", tmp_path / "broker", "broker-java", namesrv, **settings),
    ):
        yield namesrv


async def log_in(client: PageClient, name: str, password: str) -> int:
    with trio.fail_after(60):
        while True:
            status = await client.log_in(name, password)
            if status != 502:  # the broker's stores are not open yet
                return status
            await trio.sleep(0.5)


async def test_the_console_at_a_guarded_cluster(guarded: str, tmp_path: Path) -> None:
    async with (
        Admin(guarded, credentials=ROOT) as admin,
        console_of(guarded, tmp_path, users_file=None, credentials=ROOT) as client,
    ):
        assert await log_in(client, "rocketmq2", "wrong password") == 401
        assert await log_in(client, "nobody", "12345678") == 401
        assert await log_in(client, "rocketmq2", "12345678") == 303
        (broker,) = await admin.brokers()
        await client.get("/policies")
        await client.post("/policies/user", name="guest", password="guest-pass", type="Normal")
        assert "User guest was created at all brokers." in await client.follow()
        rule = {"subject": "User:guest", "resource": "Topic:Java*", "actions": "Pub, Sub"}
        await client.post("/policies/rule", **rule, sources="10.0.0.0/8", decision="Allow")
        assert "The rule of User:guest was written" in await client.follow()
        cells = [">User:guest</th>", ">Topic:Java*</td>", ">Pub, Sub</td>", ">10.0.0.0/8</td>"]
        assert [cell for cell in cells if cell not in client.text] == []
        assert "broker-java" in await client.get("/brokers")
        assert 'class="badge good"' in client.text
        await client.get("/policies")
        assert re.search(r">guest</th><td>Normal</td>", client.text), client.text
        assert "guest-pass" not in client.text
        await client.get("/topics/create")
        await client.post(
            "/topics/create", name="JavaOrders", cluster="TestCluster", queues="2", type="NORMAL"
        )
        assert "Topic JavaOrders was created." in await client.follow()
        await client.post("/topic/send", name="JavaOrders", body='{"n": 1}', tag="t", keys="k9")
        await client.follow()
        assert '"n": 1' in client.text
        with trio.fail_after(10):  # Java's index is built a moment later
            while client.text.count('href="/message?') != 1:
                await client.get("/messages?topic=JavaOrders&by=key&key=k9")
                await trio.sleep(0.2)
        link = re.search(r'href="(/message\?[^"]+)"', client.text)
        assert link is not None
        await client.get(link.group(1))
        fields = dict(re.findall(r'name="(queue|offset|broker)" value="([^"]*)"', client.text))
        await client.post("/message/resend", topic="JavaOrders", **fields)
        assert "was sent again to JavaOrders" in await client.follow()
        await admin.update_group("java-billing", lambda config: config)
        for number in (0, 1):
            queue = MessageQueue("JavaOrders", "broker-java", number)
            end = await admin.max_offset(queue)
            commit = UpdateConsumerOffsetHeader("java-billing", "JavaOrders", number, end)
            await admin.ask(broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        form = {"name": "java-billing", "topic": "JavaOrders", "time": "", "by": "0"}
        await client.get(
            "/group/move?name=java-billing&topic=JavaOrders&target=earliest&by=0&time="
        )
        assert sum(map(int, re.findall(r'<td class="right">(-?\d+)</td>', client.text)[3::6])) == -2
        await client.post("/group/move", target="earliest", **form)
        assert client.status == 303, client.text
        client.console.poller.refresh_soon()
        for path, text in (
            ("/", "1 of 1"),
            ("/groups", "java-billing"),
            ("/group?name=java-billing", "JavaOrders"),
            ("/configuration?search=brokerName", "broker-java"),
            ("/configuration?kind=namesrv&search=listenPort", guarded.rpartition(":")[2]),
            ("/producers", "rows"),
            ("/dead-letters?group=java-billing", "No dead letters"),
        ):
            with trio.fail_after(10):
                while text not in await client.get(path):
                    assert client.status == 200, path
                    await trio.sleep(0.2)
        address = broker.address
        await client.get(
            "/configuration/change?kind=broker&key=autoCreateSubscriptionGroup&value=false"
        )
        assert "<ins>+ autoCreateSubscriptionGroup=false</ins>" in client.text
        await client.post(
            "/configuration/change",
            kind="broker",
            key="autoCreateSubscriptionGroup",
            value="false",
            server=address,
        )
        assert client.status == 303, client.text
        await client.get("/configuration?search=innerClient")
        assert "12345678" not in client.text
        await client.get("/topic?name=JavaOrders")
        await client.post("/topic/delete", name="JavaOrders", confirm="JavaOrders")
        assert client.status == 303, client.text
        async with other_browser(client) as other:
            assert await log_in(other, "guest", "guest-pass") == 303
            await other.get("/topics/create")
            assert other.status == 403, "a normal user is a viewer"
        await client.get("/policies")
        await client.post("/policies/rule/delete", **rule, policy="Custom")
        assert ">User:guest</th>" not in await client.follow()
        await client.post("/policies/user/delete", name="guest", confirm="guest")
        assert ">guest</th>" not in await client.follow()
        assert "guest-pass" not in (tmp_path / "audit.jsonl").read_text()
