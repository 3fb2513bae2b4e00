"""``mqadmin acl convert``: accounts of ACL 1.0 become users and rules, differences first."""

from __future__ import annotations

from pathlib import Path

import trio
from access_callers import ROOT, SETTINGS, Caller
from access_requests import GOLDEN, access_request
from mqadmin_calls import mqadmin
from replicated_brokers import broker_group

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.bodies import auth
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.auth import UserHeader

FILE = GOLDEN / "plain_acl.yml"
SECRET = "12345678"


async def test_differences_are_printed_first_then_made(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    async with broker_group(tmp_path) as group:
        member = await group.start(0, **SETTINGS)
        address = member.ready.address
        place = ("-b", address, "-n", group.namesrv, "--credentials", file)

        def prepare() -> None:
            with BlockingConnection(address) as connection:
                caller = Caller(connection)
                caller.create_user("nobody1", "an-old-secret")
                caller.grant("nobody1", [["Topic:old", ["Pub"]]], None)
                caller.create_user("untouched", "another-secret")

        def tried() -> list[int]:
            with BlockingConnection(address) as connection:
                caller = Caller(connection)
                return [
                    caller.ask(access_request(code, ""), name, SECRET).code
                    for name, code in (
                        ("RocketMQ", Code.SEND_MESSAGE),
                        ("RocketMQ", Code.SEARCH_OFFSET_BY_TIMESTAMP),
                        ("nobody1", Code.SEND_MESSAGE),
                        ("subonly1", Code.SEND_MESSAGE),
                        ("pubonly1", Code.SEND_MESSAGE),
                        ("rocketmq2", Code.AUTH_LIST_USER),
                    )
                ]

        await trio.to_thread.run_sync(prepare)
        shown = await mqadmin("acl", "convert", FILE, *place)
        assert shown.code == 0, shown.err
        for part in (
            "+ user RocketMQ (Normal)",
            "+ user rocketmq2 (Super)",
            "~ user nobody1: password = (hidden, new)",
            "- nobody1: the rule allows Pub on Topic:old",
            "+ RocketMQ: the rule denies All on Topic:topicA",
            "+ subonly1: the rule allows Sub,Get on Topic:* (Default)",
        ):
            assert part in shown.out, shown.out
        said = shown.out + shown.err
        assert "--yes makes these changes" in said
        assert "rocketmq2, whiteip must sign" in said
        assert "untouched" not in said
        assert SECRET not in said
        no = ResponseCode.NO_PERMISSION
        assert set(await trio.to_thread.run_sync(tried)) == {no}, "nothing was changed"

        made = await mqadmin("acl", "convert", FILE, *place, "--yes", "--json")
        assert made.code == 0, made.err
        assert made.document["applied"] is True
        codes = await trio.to_thread.run_sync(tried)
        assert [code == no for code in codes] == [False, False, True, True, False, False]

        again = await mqadmin("acl", "convert", FILE, *place)
        assert "nothing differs" in again.out, again.out

        def kept() -> str | None:
            with BlockingConnection(address) as connection:
                answer = Caller(connection).ask_root(Code.AUTH_GET_USER, UserHeader("untouched"))
                return auth.User.decode(answer.body).password

        assert await trio.to_thread.run_sync(kept) == "another-secret"


async def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("accounts:\n- {accessKey: long-enough, secretKey: short}\n")
    done = await mqadmin("acl", "convert", file, "-b", "127.0.0.1:1", "-n", "127.0.0.1:1")
    assert done.code != 0
    assert "longer than 6 characters" in done.err
