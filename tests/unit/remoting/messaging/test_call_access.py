"""The date of a call is compared with the clock of the moment at which the call began."""

from __future__ import annotations

import hashlib
import hmac
from unittest.mock import Mock

import pytest

from triomq.remoting.access.control import AccessControl, Check
from triomq.remoting.access.users import AccessUser, UserTable
from triomq.remoting.audit.decision_notes import DecisionNotes
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.call_access import CallAccess
from triomq.remoting.messaging.status_codes import Refused

DATE, SECONDS = "20261129T120000Z", 1_795_953_600.0
SETTINGS = rpc.TelemetryCommand()


def call_of(age: float) -> Mock:
    signature = hmac.digest(b"secret", DATE.encode(), hashlib.sha1).hex()
    metadata = {
        "x-mq-date-time": DATE,
        "authorization": f"MQv2-HMAC-SHA1 Credential=shop, Signature={signature}",
    }
    return Mock(metadata=metadata, peer=("127.0.0.1", 1), age=lambda: age)


def access_at(now: float, window: float = 300) -> CallAccess:
    table = UserTable(users={"shop": AccessUser("shop", "secret")})
    control = AccessControl(table, "c", date_window_seconds=window)
    return CallAccess(DecisionNotes(control), clock=lambda: now)


@pytest.mark.parametrize("away", [-300, 0, 300])
def test_a_date_inside_the_window_is_good_and_that_of_a_stream_stays_good(away: float) -> None:
    access_at(SECONDS + away).require("Telemetry", SETTINGS, call_of(0))
    access_at(SECONDS + 86_400 + away).require("Telemetry", SETTINGS, call_of(86_400))


@pytest.mark.parametrize("away", [-301, 301])
def test_a_date_outside_of_the_window_is_refused_and_counted(away: float) -> None:
    access = access_at(SECONDS + away)
    with pytest.raises(Refused, match="x-mq-date-time is 301 s away"):
        access.require("Telemetry", SETTINGS, call_of(0))
    assert access.notes.control.refusals[Check.DATE] == 1
    access_at(SECONDS + away, window=0).require("Telemetry", SETTINGS, call_of(0))
