"""Every request code is a change, a watched request or an ordinary one."""

from __future__ import annotations

from unittest.mock import MagicMock

from triomq.broker.processors.handler_table import handler_table
from triomq.namesrv.controller.serve_controller import ControllerParts
from triomq.namesrv.request_table import handler_table as namesrv_table
from triomq.remoting.access.administration import CHANGES, ORDINARY, WATCHED


def test_every_request_code_is_in_one_set() -> None:
    handled = set(handler_table(MagicMock()).handlers)
    handled |= set(namesrv_table(*(MagicMock() for _ in range(4))).handlers)
    handled |= set(ControllerParts.handler_table(*(MagicMock() for _ in range(3))).handlers)
    assert handled == {int(code) for code in CHANGES | WATCHED | ORDINARY}
    assert len(handled) == len(CHANGES) + len(WATCHED) + len(ORDINARY)
