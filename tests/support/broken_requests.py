"""Requests and replies with one rule broken: the simulation must find each of them."""

from __future__ import annotations

from typing import Any

import pytest

from triomq.broker.processors.replies import Replies
from triomq.broker.services.groups import GroupTable
from triomq.broker.store.core.draft import Appended
from triomq.client.receiving import replier
from triomq.client.requests.requests import Requests
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.message_properties import CORRELATION_ID
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response


def a_reply_ends_the_oldest_request(patch: pytest.MonkeyPatch) -> None:
    """A requester does not look which of its requests a reply is for."""
    take = Requests.take

    def careless(self: Requests, address: str, command: Command) -> Command:
        waiting = self._waiting
        oldest = next((key for key, one in waiting.items() if one.reply is None), None)
        self._waiting = {} if oldest is None else _Any(waiting[oldest])
        try:
            return take(self, address, command)
        finally:
            self._waiting = waiting

    patch.setattr(Requests, "take", careless)


class _Any(dict[str, Any]):
    """The same for every key."""

    def __init__(self, value: object) -> None:
        self.value = value

    def get(self, key: str, default: object = None) -> Any:
        return self.value


def a_reply_names_the_request_before(patch: pytest.MonkeyPatch) -> None:
    """A replier mixes up the ids of two requests."""
    original, last = replier._request_properties, ""

    def mixed_up(record: StoredMessage) -> dict[str, str]:
        nonlocal last
        found = dict(original(record))
        mine, other = found[CORRELATION_ID], last
        last = mine
        return {**found, CORRELATION_ID: other or mine}

    patch.setattr(replier, "_request_properties", mixed_up)


def a_reply_goes_to_any_requester(patch: pytest.MonkeyPatch) -> None:
    """A broker pushes it over the newest connection of a producer, whoever that is."""

    def newest(self: GroupTable[Any], client_id: str) -> Any:
        every = [key for one in self._by_producer_id.values() for key in one]
        return every[-1] if every else None

    patch.setattr(GroupTable, "producer_connection", newest)


def a_broker_answers_before_the_requester_does(patch: pytest.MonkeyPatch) -> None:
    """A replier is told that its reply arrived when it was only pushed."""
    push = Replies._push

    def hasty(
        self: Replies,
        request: Request,
        connection: Connection,
        client_id: str,
        text: str,
        place: Appended | None,
    ) -> Response:
        push(self, request, connection, client_id, text, place)
        return self._response(request.header, place, None)

    patch.setattr(Replies, "_push", hasty)


def a_request_waits_on_after_its_timeout(patch: pytest.MonkeyPatch) -> None:
    """In the table of its program, though the caller has its error."""

    class Kept(dict[str, Any]):
        def __delitem__(self, key: str) -> None:
            if self[key].reply is not None:
                super().__delitem__(key)

    begin = Requests.__attrs_post_init__

    def leaky(self: Requests) -> None:
        begin(self)
        self._waiting = Kept()

    patch.setattr(Requests, "__attrs_post_init__", leaky)


def a_request_has_twice_its_time(patch: pytest.MonkeyPatch) -> None:
    request = Requests.request
    patch.setattr(
        Requests,
        "request",
        lambda self, outgoing, target, seconds: request(self, outgoing, target, 2 * seconds),
    )


BROKEN_REQUESTS = (
    a_reply_ends_the_oldest_request,
    a_reply_names_the_request_before,
    a_reply_goes_to_any_requester,
    a_broker_answers_before_the_requester_does,
    a_request_waits_on_after_its_timeout,
    a_request_has_twice_its_time,
)
