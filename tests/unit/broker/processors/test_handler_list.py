"""The list of request codes is complete: each code is answered, or left out with a reason, and
never both.
"""

from __future__ import annotations

from unittest.mock import MagicMock

import attrs
from header_catalogue import HEADERS
from unsupported_codes import UNSUPPORTED

from triomq.broker.config.pool_settings import PoolSettings
from triomq.broker.processors.handler_table import Processors, handler_table
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import SHORT_NAME_CODES
from triomq.remoting.server.handlers import HandlerTable


def make_table() -> HandlerTable:
    return handler_table(
        Processors(**{field.name: MagicMock() for field in attrs.fields(Processors)})
    )


def test_every_code_is_in_exactly_one_of_the_two() -> None:
    handled = set(make_table().handlers)
    assert handled & set(UNSUPPORTED) == set()
    assert handled | set(UNSUPPORTED) == {int(code) for code in RequestCode}
    assert all(UNSUPPORTED.values())


def test_headers_and_short_names_are_those_of_the_catalogue() -> None:
    for code, handler in make_table().handlers.items():
        assert handler.header is HEADERS[code].request, RequestCode(code).name
        assert handler.short == (code in SHORT_NAME_CODES), RequestCode(code).name


def test_every_handler_is_in_java_s_pool_or_in_the_pool_of_what_it_waits_for() -> None:
    """Source: broker/BrokerController.java#registerProcessor; what is not named there goes to
    Java's admin pool, which is divided here.
    """
    families = {
        "send": {10, 310, 320, 36, 370},
        "pull": {11, 200050, 200054, 200055},
        "ack": {200051, 200053, 200151},
        "lite-pull": {361},
        "query": {12, 33},
        "heartbeat": {34},
        "client": {35, 46},
        "consumer": {38, 14, 15},
        "transaction": {37},
        "lock": {41, 42},
        "offset": {29, 30, 31, 32},
        "disk": {200052, 202, 208, 317, 303, 321, 222, 28},
        "change": {17, 18, 215, 200, 225, 353, 207, 906, 1002, 401, 50, 51, 53, *range(3001, 3009)}
        - {3004, 3005},
        "relay": {307, 309, 223, 400},
        "reply": {324, 325},
    }
    for code, handler in make_table().handlers.items():
        expected = next((name for name, codes in families.items() if code in codes), "admin")
        assert handler.pool == expected, RequestCode(code).name


def test_every_pool_exists_and_the_three_sends_share_their_batches() -> None:
    handlers = make_table().handlers
    without_handlers_yet = {"ack", "balance"}
    assert {handler.pool for handler in handlers.values()} | without_handlers_yet == set(
        PoolSettings().by_name()
    )
    sends = [
        handlers[code]
        for code in (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
        )
    ]
    assert all(handler.batch and handler.call is sends[0].call for handler in sends)
