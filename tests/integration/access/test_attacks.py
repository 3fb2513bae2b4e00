"""What an attacker tries at a broker with access control, and gets nothing of; and the table of
docs/security.md, whose tests exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from brokers import running_broker
from pages import ROOT as PROJECT
from processes import free_port

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader
from triomq.remoting.protocol.signing import ACCESS_KEY, SIGNATURE, Credentials, signed

REFUSED = int(ResponseCode.NO_PERMISSION)
CREATE = request(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("TA", "TBW102", 1, 1, 6))


def send(topic: str) -> Command:
    header = SendMessageHeader(
        producer_group="P",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
    )
    return request(Code.SEND_MESSAGE, header, b"body")


def as_shop(command: Command) -> Command:
    """The request, signed by the user who may send to TA."""
    signer = Credentials(access_key="shop", secret_key=PASSWORD)
    ext = signed(dict(command.ext or {}), bytes(command.body), signer)
    return Command(command.code, body=command.body, ext=ext)


def changed(**fields: str) -> Callable[[], Command]:
    """The attacker changes fields of a request that they have seen."""

    def make() -> Command:
        command = as_shop(send("TA"))
        return Command(command.code, body=command.body, ext={**(command.ext or {}), **fields})

    return make


def another_body() -> Command:
    command = as_shop(send("TA"))
    return Command(command.code, body=b"theirs", ext=command.ext)


def without(field: str) -> Callable[[], Command]:
    def make() -> Command:
        command = as_shop(send("TA"))
        ext = {name: text for name, text in (command.ext or {}).items() if name != field}
        return Command(command.code, body=command.body, ext=ext)

    return make


ATTEMPTS: dict[str, Callable[[], Command]] = {
    "no credentials": lambda: send("TA"),
    "no signature": without(SIGNATURE),
    "no user": without(ACCESS_KEY),
    "an empty signature": changed(**{SIGNATURE: ""}),
    "a signature of something else": changed(**{SIGNATURE: "AAAAAAAAAAAAAAAAAAAAAAAAAAA="}),
    "a signature that is no base64": changed(**{SIGNATURE: "\x00\xff"}),
    "the name of the administrator": changed(**{ACCESS_KEY: ROOT[0]}),
    "the name of the brokers": changed(**{ACCESS_KEY: "inner"}),
    "a user who does not exist": changed(**{ACCESS_KEY: "nobody"}),
    "another topic": changed(topic="TB"),
    "another queue": changed(queueId="1"),
    "one more field": changed(extra="x"),
    "another body": another_body,
    "a topic without a right": lambda: as_shop(send("TB")),
    "a request without a right": lambda: as_shop(CREATE),
    "a system topic": lambda: as_shop(send("RMQ_SYS_TRANS_HALF_TOPIC")),
}


@pytest.mark.parametrize("port", ["listenPort", "fastListenPort"])
async def test_what_an_attacker_tries(tmp_path: Path, port: str) -> None:
    """Each on a connection on which the user is served before and afterwards."""
    fast = free_port()
    async with running_broker(tmp_path, **{**SETTINGS, "fastListenPort": fast}) as broker:

        def attack() -> dict[str, int]:
            with BlockingConnection(broker.address) as connection:
                root = Caller(connection)
                for topic in ("TA", "TB"):
                    header = CreateTopicHeader(topic, "TBW102", 2, 2, 6)
                    assert root.ask_root(Code.UPDATE_AND_CREATE_TOPIC, header).code == 0
                root.create_user("shop")
                root.grant("shop", [["Topic:TA", ["Pub"]]], None)
            found = {}
            address = broker.address if port == "listenPort" else f"127.0.0.1:{fast}"
            with BlockingConnection(address) as connection:
                for name, attempt in ATTEMPTS.items():
                    assert connection.invoke(as_shop(send("TA")), timeout=30).code == 0
                    found[name] = connection.invoke(attempt(), timeout=30).code
                assert connection.invoke(as_shop(send("TA")), timeout=30).code == 0
            return found

        found = await trio.to_thread.run_sync(attack)
        assert {name for name, code in found.items() if code != REFUSED} == set(), found


async def test_no_request_switches_access_control_off(tmp_path: Path) -> None:
    """Not even the administrator's: whoever has their key for a moment leaves no open door."""
    changes = (
        *("authenticationEnabled=false", "authorizationEnabled=false"),
        *("authenticationWhitelist=10", "authorizationWhitelist=10", "adminAddresses="),
        *('initAuthenticationUser={"username":"a","password":"b"}', "auditLogPath="),
        *("tlsSubjectIsUser=true", "proxyProtocol=optional", "haAuthentication=false"),
    )
    async with running_broker(tmp_path, **SETTINGS) as broker:

        def attack() -> list[int]:
            with BlockingConnection(broker.address) as connection:
                caller = Caller(connection)
                answers = [
                    caller.ask(Command(Code.UPDATE_BROKER_CONFIG, body=change.encode()), *ROOT)
                    for change in changes
                ]
                assert connection.invoke(send("TA"), timeout=30).code == REFUSED
                return [answer.code for answer in answers]

        assert 0 not in await trio.to_thread.run_sync(attack)
    assert not (tmp_path / "config" / "runtime.properties").exists()


def test_each_threat_of_the_page_names_tests_that_exist() -> None:
    page = (PROJECT / "docs" / "security.md").read_text()
    table = page.partition("### What an attacker tries\n")[2].partition("\n#")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        _, _, held = row.rpartition(" | ")
        named = re.findall(r"`(test_\w+)` in `(tests/[\w/]+\.py)`", held)
        assert named, row
        for test, path in named:
            assert re.search(rf"def {test}\b", (PROJECT / path).read_text()), (test, path)
