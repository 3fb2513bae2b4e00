"""A master and a slave with access control: what the slave needs works, and it knows the users."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from mqadmin_calls import mqadmin
from replicated_brokers import broker_group, eventually

from triomq.broker.options import load_broker_config
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.auth import UserHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader

T = TypeVar("T")


async def as_caller(address: str, work: Callable[[Caller], T]) -> T:
    def run() -> T:
        with BlockingConnection(address) as connection:
            return work(Caller(connection))

    return await trio.to_thread.run_sync(run)


@pytest.mark.feature("167d")
async def test_a_slave_copies_tables_users_and_rules_of_a_master_with_access_control(
    tmp_path: Path,
) -> None:
    reading = Command(Code.GET_TOPIC_CONFIG, ext={"topic": "TA"})

    def prepare(caller: Caller) -> None:
        made = caller.ask_root(
            Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("TA", "TBW102", 1, 1, 6)
        )
        assert made.code == 0
        caller.create_user("frank")
        caller.grant("frank", [["Topic:TA", ["Get"]]], None)

    def asked(name: str | None, caller: Caller) -> int:
        return caller.ask(reading, name).code

    async with broker_group(tmp_path) as group:
        settings = {**SETTINGS, "storeReplyMessageEnable": False}
        master = await group.start(0, **settings)
        await as_caller(master.ready.address, prepare)
        slave = await group.start(1, **settings)
        place = slave.ready.address

        async def served() -> bool:
            return await as_caller(place, partial(asked, "frank")) == 0

        await eventually(served)
        assert await as_caller(place, partial(asked, None)) == ResponseCode.NO_PERMISSION

        def delete(caller: Caller) -> None:
            assert caller.ask_root(Code.AUTH_DELETE_USER, UserHeader("frank")).code == 0

        await as_caller(master.ready.address, delete)

        async def refused() -> bool:
            return await as_caller(place, partial(asked, "frank")) == ResponseCode.NO_PERMISSION

        await eventually(refused)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"authorizationEnabled": "true"},
            "authorizationEnabled=true without authenticationEnabled",
        ),
        (
            {"authenticationEnabled": "true", "brokerRole": "SLAVE", "brokerId": "1"},
            "has no innerClientAuthenticationCredentials",
        ),
        ({"initAuthenticationUser": "root"}, '{"username":"NAME","password":"SECRET"}'),
        ({"authenticationWhitelist": "all"}, "not a list of request codes"),
    ],
)
def test_settings_that_leave_a_door_open_or_nobody_in_end_the_start(
    settings: dict[str, str], complaint: str
) -> None:
    entries = [Entry(key, value) for key, value in settings.items()]
    with pytest.raises(ConfigError) as caught:
        load_broker_config(None, environment={}, definitions=entries)
    assert complaint in str(caught.value)


def test_a_secret_is_in_no_error_and_an_option_with_one_is_warned_of() -> None:
    broken = [Entry("initAuthenticationUser", '{"username":"root","passwort":"hidden"}')]
    with pytest.raises(ConfigError) as caught:
        load_broker_config(None, environment={}, definitions=broken)
    assert "hidden" not in str(caught.value)
    given = [Entry("initAuthenticationUser", '{"username":"root","password":"hidden"}')]
    loaded = load_broker_config(None, environment={}, definitions=given)
    (warning,) = loaded.warnings
    assert "list of processes" in warning
    assert "hidden" not in warning + repr(loaded.config)


async def test_a_white_list_leaves_out_one_check_of_the_codes_it_names(tmp_path: Path) -> None:
    """And a listed request opens nothing for others of its connection."""
    async with broker_group(tmp_path) as group:
        settings = {**SETTINGS, "authenticationWhitelist": "28", "authorizationWhitelist": "351"}
        member = await group.start(0, **settings)

        def ask(caller: Caller) -> list[int]:
            caller.create_user("frank")
            config = Command(Code.GET_BROKER_CONFIG)
            topic = Command(Code.GET_TOPIC_CONFIG, ext={"topic": "TA"})
            answers = [
                caller.ask(Command(Code.GET_BROKER_RUNTIME_INFO), ROOT[0], "wrong"),
                caller.ask(config, ROOT[0], "wrong"),
                caller.ask(Command(Code.GET_BROKER_RUNTIME_INFO), None),
                caller.ask(config, None),
                caller.ask(topic, "frank"),
                caller.ask(topic, None),
                caller.ask(request(Code.AUTH_GET_USER, UserHeader("root")), "frank"),
            ]
            return [answer.code for answer in answers]

        no = int(ResponseCode.NO_PERMISSION)
        missing = int(ResponseCode.TOPIC_NOT_EXIST)
        answers = await as_caller(member.ready.address, ask)
        assert answers == [0, no, 0, no, missing, no, no]


@pytest.mark.feature(210)
async def test_mqadmin_says_which_rule_decides(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    async with broker_group(tmp_path) as group:
        member = await group.start(0, **SETTINGS)

        def prepare(caller: Caller) -> None:
            caller.create_user("shop")
            caller.grant("shop", [["Topic:ord*", ["Pub"]]], "10.0.0.0/8")

        await as_caller(member.ready.address, prepare)
        place = ("-b", member.ready.address, "-n", group.namesrv, "--credentials", file)

        async def ask(*words: str) -> tuple[int, str]:
            done = await mqadmin("can", *words, *place, "--json")
            (found,) = done.document["brokers"].values()
            return done.code, found["why"]

        inside = ("--from", "10.1.2.3")
        rule = "the rule allows Pub on Topic:ord* from 10.0.0.0/8"
        assert await ask("shop", "Pub", "Topic:orders", *inside) == (0, rule)
        assert await ask("shop", "Pub", "Topic:orders") == (1, "no rule is about that")
        assert await ask("shop", "Sub", "Topic:orders", *inside) == (1, "no rule is about that")
        assert await ask("root", "Delete", "Topic:x") == (0, "a super user may do everything")
        unknown = await mqadmin("can", "ghost", "Pub", "Topic:x", *place)
        assert unknown.code != 0
        assert "mqadmin user list" in unknown.err


async def test_mqadmin_says_for_whom_brokers_take_it(tmp_path: Path) -> None:
    def file_of(name: str, password: str) -> Path:
        file = tmp_path / f"{name}-{password}.yml"
        file.write_text(f"accessKey: {name}\nsecretKey: {password}\n")
        return file

    async with broker_group(tmp_path) as group:
        member = await group.start(0, **SETTINGS)
        await as_caller(member.ready.address, lambda caller: caller.create_user("shop"))
        place = ("-b", member.ready.address, "-n", group.namesrv)

        async def ask(*credentials: str) -> tuple[Any, ...]:
            given = ("--credentials", file_of(*credentials)) if credentials else ()
            done = await mqadmin("whoami", *place, *given, "--json")
            (found,) = done.document["brokers"].values()
            return done.code, found["user"], found["type"], found["why"]

        assert await ask(*ROOT) == (0, "root", "Super", "the signature is good")
        code, user, kind, _why = await ask("shop", PASSWORD)
        assert (code, user, kind) == (0, "shop", "Normal")
        assert await ask("shop", "wrong") == (1, None, None, "check signature failed.")
        assert await ask("ghost", PASSWORD) == (1, None, None, "User:ghost is not found.")
        code, user, _kind, why = await ask()
        assert (code, user) == (1, None)
        assert "--credentials" in why


async def test_mqadmin_says_that_a_broker_authenticates_nobody(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        member = await group.start(0)
        done = await mqadmin("whoami", "-b", member.ready.address, "-n", group.namesrv)
    assert done.code == 0
    assert "nobody" in done.out
    assert "authenticationEnabled is false" in done.out
