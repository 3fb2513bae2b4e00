"""``@once``: what identifies a message, and which arguments are refused."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

import triomq
from triomq import HandlerInvalid, SettingsError, SqliteOnceStore, aio, once, sync
from triomq.client.idempotency.claims import message_key, scope_of, stored_key
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.process_queue import ProcessQueue
from triomq.client.receiving.received import ReceivedMessage
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage

interfaces = pytest.mark.parametrize("interface", [triomq, sync, aio], ids=["trio", "sync", "aio"])


def message(properties: str = "", topic: str = "Orders") -> ReceivedMessage:
    stored = StoredMessage(
        topic, 0, 0, 77, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"", 0, properties.encode()
    )
    queue = MessageQueue(topic, "broker-a", 0)
    assignment = Assignment(queue, ProcessQueue(0), None, None, "billing")  # type: ignore[arg-type]
    return ReceivedMessage(stored, assignment)


def test_copies_of_a_message_have_one_key() -> None:
    """A message without the producer's id is known by its first place in the log."""
    with_id = message("UNIQ_KEY\x017F\x02ORIGIN_MESSAGE_ID\x010A\x02")
    assert message_key(with_id) == "7F"
    first = message()
    copy = message(
        f"RETRY_TOPIC\x01Orders\x02ORIGIN_MESSAGE_ID\x01{first.offset_message_id}\x02",
        "%RETRY%billing",
    )
    assert message_key(copy) == message_key(first) == first.offset_message_id
    assert scope_of(copy) == scope_of(first) == "billing/Orders"


def test_keys_have_a_limit() -> None:
    assert stored_key("7F" * 16) == "7F" * 16
    for key in ("k" * 256, "nul \0", "line\n", "half \ud800"):
        assert stored_key(key).startswith("sha256:")
    assert len({stored_key("k" * length) for length in (255, 256, 257)}) == 3


@interfaces
def test_once_has_the_same_parameters(interface: Any) -> None:
    parameters = inspect.signature(interface.once).parameters
    assert parameters == inspect.signature(once).parameters


@interfaces
def test_wrong_arguments_are_refused(interface: Any) -> None:
    store = SqliteOnceStore("never opened")
    redis = triomq.RedisOnceStore("redis://localhost")
    for arguments, options, reason in (
        (("once.db",), {}, "takes a store, such as SqliteOnceStore"),
        ((store,), {"wait": -1}, "wait must be a number of seconds"),
        ((store,), {"key": "order"}, "key"),
        ((redis,), {"transaction": True}, "RedisOnceStore has no transactions"),
    ):
        with pytest.raises(SettingsError, match=reason):
            interface.once(*arguments, **options)


async def test_handlers_and_keys_are_checked() -> None:
    store = SqliteOnceStore("never opened")
    with pytest.raises(HandlerInvalid, match="not an async function"):
        once(store)(print)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="must be a plain function"):
        sync.once(store)(anything)

    guarded = once(store, key=lambda message: message.keys[0] if message.keys else "")(anything)
    with pytest.raises(HandlerInvalid, match="takes one message, not the list"):
        await guarded([message()])  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="must return a text that is not empty"):
        await guarded(message())
    with pytest.raises(SettingsError, match="must return a text that is not empty"):
        sync.once(store, key=lambda message: None)(print)(message())  # type: ignore[arg-type,return-value]
    assert guarded.__name__ == "anything"


async def anything(message: Any) -> None:
    """Handle a message."""


def test_wrong_settings_of_stores_are_refused() -> None:
    for options, reason in (
        ({"lease": 0}, "lease must be a number of seconds above 0"),
        ({"lease": None}, "lease must be a number of seconds above 0"),
        ({"retention": -1}, "retention must be a number of seconds"),
        ({"table": "once; DROP TABLE orders"}, "table must be a name"),
    ):
        with pytest.raises(SettingsError, match=reason):
            SqliteOnceStore("never opened", **options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="conninfo is not a connection string of libpq"):
        triomq.PostgresqlOnceStore("host db")
    with pytest.raises(SettingsError, match="url is not the address of a Redis server"):
        triomq.RedisOnceStore("localhost:6379")


@pytest.mark.parametrize(
    ("package", "store", "extra"),
    [
        ("psycopg", triomq.PostgresqlOnceStore, "postgresql"),
        ("redis", triomq.RedisOnceStore, "redis"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, store: Any, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingsError, match=rf"pip install 'triomq\[{extra}\]'"):
        store("anything")
