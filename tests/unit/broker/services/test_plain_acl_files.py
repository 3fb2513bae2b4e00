"""The files of ACL 1.0: what they mean, and how a change comes into force."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.services.plain_acl_files import PlainAclFiles, open_plain_acl
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.resources import Action, group_need, topic_need
from triomq.remoting.access.users import AccessUser
from triomq.remoting.core.settings import ConfigError

ACCOUNTS = """
globalWhiteRemoteAddresses: [10.9.0.*]
accounts:
  - accessKey: shop-key
    secretKey: 012345678
    whiteRemoteAddress: 10.8.0.{1,2}
    defaultTopicPerm: PUB
    defaultGroupPerm: SUB
    topicPerms: [orders=SUB, bills=DENY, both=PUB|SUB]
    groupPerms: [readers=SUB, others=DENY]
  - accessKey: admin-key
    secretKey: 12345678
    admin: true
dataVersion:
  - {timestamp: 1700000000000, counter: 1}
"""
HERE = "127.0.0.1"


def written(folder: Path, text: str = ACCOUNTS) -> Path:
    path = folder / "plain_acl.yml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_permissions_are_rules_of_the_one_decision(tmp_path: Path) -> None:
    table = open_plain_acl(written(tmp_path), None).table
    control, user = AccessControl(table, "C"), table.users["shop-key"]
    assert user.password == "012345678", "a text, whatever number YAML takes it for"
    assert table.users["admin-key"].is_super

    def may(topic: str, *actions: Action) -> bool:
        return control.decide(user, topic_need(topic, *actions), HERE).allowed

    def reads(group: str) -> bool:
        return control.decide(user, group_need(group, Action.SUB), HERE).allowed

    pub, sub = Action.PUB, Action.SUB
    assert (may("orders", pub), may("orders", sub)) == (False, True), "its entry alone decides"
    assert (may("bills", pub), may("bills", sub), may("bills", Action.GET)) == (False,) * 3
    assert (may("both", pub), may("both", sub)) == (True, True)
    assert (may("unlisted", pub), may("unlisted", sub)) == (True, False)
    assert may("RMQ_SYS_TRACE_TOPIC", pub)
    assert may("%RETRY%readers", pub)
    assert not may("%RETRY%others", pub)
    assert [reads(group) for group in ("readers", "others", "unlisted")] == [True, False, True]
    assert not may("unlisted", Action.CREATE)
    assert table.trusted is not None
    assert table.trusted.has("10.9.0.7")
    assert user.trusted is not None
    assert user.trusted.has("10.8.0.2")


def test_files_of_the_folder_count_first_and_the_user_of_the_brokers_is_added(
    tmp_path: Path,
) -> None:
    path = written(tmp_path)
    (tmp_path / "acl" / "deep").mkdir(parents=True)
    more = tmp_path / "acl" / "deep" / "more.yml"
    more.write_text(
        "accounts:\n- {accessKey: shop-key, secretKey: another-one}\n"
        "- {accessKey: third-key, secretKey: 12345678}\n"
    )
    inner = AccessUser("brokers", "secret", is_super=True)
    table = open_plain_acl(path, inner).table
    assert table.users["shop-key"].password == "another-one"
    assert set(table.users) == {"shop-key", "admin-key", "third-key", "brokers"}


async def test_a_change_counts_when_its_content_stays(tmp_path: Path) -> None:
    path = written(tmp_path)
    files = open_plain_acl(path, None)
    table = files.table
    await files.reload_changed()
    for part in (ACCOUNTS[:150], ACCOUNTS[:200]):  # valid YAML, but not all of it
        path.write_text(part)
        await files.reload_changed()
        assert set(table.users) == {"shop-key", "admin-key"}, "a file that is being written"
    path.write_text(ACCOUNTS.replace("shop-key", "new-shop"))
    await files.reload_changed()
    assert files.loads == 1
    await files.reload_changed()
    assert set(table.users) == {"new-shop", "admin-key"}
    assert set(table.rules) == {"new-shop", "admin-key"}
    await files.reload_changed()
    assert files.loads == 2


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("accounts: [", "is not YAML in line"),
        ("accounts:\n- accessKey: short\n  secretKey: hush-hush", "longer than 6"),
        ("accounts:\n- {accessKey: long-enough, secretKey: hush}", "longer than 6"),
        ("accounts: 5", "accounts is not a list"),
        ("- a list", "is not a map"),
        ("accounts: [text]", "is not a map"),
        ("accounts:\n- [hush-hush]", "is not a map"),
        ("globalWhiteRemoteAddresses: [foo]", "no pattern of addresses"),
        (
            "accounts:\n- {accessKey: long-key, secretKey: hush-hush, topicPerms: [T=FOO]}",
            "Parse resource permission error for T=FOO",
        ),
        (
            "accounts:\n- {accessKey: long-key, secretKey: hush-hush, admin: maybe}",
            "neither true nor false",
        ),
        ("accounts: &a [*a]", "is not YAML"),
        ("[" * 50_000, "is not YAML"),
    ],
)
async def test_a_damaged_file_leaves_what_was_loaded_in_force_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, cause: str
) -> None:
    path = written(tmp_path)
    files = open_plain_acl(path, None)
    path.write_text(text)
    for _ in range(4):
        await files.reload_changed()
    assert set(files.table.users) == {"shop-key", "admin-key"}
    assert len(caplog.messages) == 1, "once, not at each look"
    assert cause in caplog.text
    assert "hush" not in caplog.text
    with pytest.raises(ConfigError):
        PlainAclFiles(path).open()
    path.write_text(ACCOUNTS.replace("shop-key", "new-shop"))
    for _ in range(2):
        await files.reload_changed()
    assert "new-shop" in files.table.users


async def test_addresses_that_clients_can_claim_are_not_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With proxyProtocol=optional; at the start, at a reload, and by a request."""
    with pytest.raises(ConfigError, match="proxyProtocol=optional"):
        open_plain_acl(written(tmp_path), None, claimed=True)
    plain = "accounts:\n- {accessKey: shop-key, secretKey: 12345678}\n"
    files = open_plain_acl(written(tmp_path, plain), None, claimed=True)
    white = plain.replace("}", ', whiteRemoteAddress: "*"}')
    for text in (white, plain + 'globalWhiteRemoteAddresses: ["*"]\n'):
        files.path.write_text(text)
        for _ in range(2):
            await files.reload_changed()
        assert files.loads == 1
    assert "every client can claim any address" in caplog.text
    files.path.write_text(plain)
    with pytest.raises(ValueError, match="proxyProtocol=optional"):
        await files.change(
            files.path, lambda document: document.update(globalWhiteRemoteAddresses=["*"])
        )
    assert files.path.read_text() == plain


def test_no_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is neither"):
        open_plain_acl(tmp_path / "plain_acl.yml", None)


def test_a_file_that_others_may_read_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    path.chmod(0o644)
    open_plain_acl(path, None)
    assert "chmod 600" in caplog.text
