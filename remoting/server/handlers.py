"""What a server can do: the table of request codes with their handlers, header classes and pools.

A handler does its work synchronously when it need not wait, and returns its response. It returns an
awaitable only when it must wait, so that an idle pool can run it in place without a task switch.
State changes come before the first checkpoint: then their order is the order of arrival, however
many workers a pool has. A handler refuses by raising Rejected(code, remark); any other exception
becomes SYSTEM_ERROR and is logged once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

import attrs

from triomq.remoting.protocol.request_decoder import RequestDecoder
from triomq.remoting.server.requests import Call


@attrs.frozen
class Handler:
    """One line of a handler table.

    ``call`` takes a Request and returns a Response, a Deferred (the response comes later or never),
    or an awaitable of either. With ``batch`` it takes a list of requests that arrived one after the
    other and returns as many responses, in order, one Deferred for all, or an awaitable of either;
    None in the list stands for a response that the handler has already written. ``short``: the
    header uses the one-letter names. ``reject`` is asked before a request is let into the pool;
    True refuses the request as busy.
    """

    code: int
    call: Call
    pool: str = "default"
    header: type | None = None
    short: bool = False
    batch: bool = False
    reject: Callable[[], bool] | None = None


def _by_code(handlers: Iterable[Handler]) -> Mapping[int, Handler]:
    table: dict[int, Handler] = {}
    for handler in handlers:
        if int(handler.code) in table:
            raise ValueError(f"request code {int(handler.code)} has two handlers; keep one")
        table[int(handler.code)] = handler
    return MappingProxyType(table)


@attrs.frozen
class HandlerTable:
    """All request codes of a server."""

    handlers: Mapping[int, Handler] = attrs.field(converter=_by_code)

    def restricted(self, exclude_codes: Collection[int]) -> "HandlerTable":
        """Return the same table without some codes (the fast port serves no pulls)."""
        excluded = {int(code) for code in exclude_codes}
        return HandlerTable(
            handler for code, handler in self.handlers.items() if code not in excluded
        )

    def decoder(self) -> RequestDecoder:
        """Return the decoder for the header class of every code."""
        return RequestDecoder(
            {code: (handler.header, handler.short) for code, handler in self.handlers.items()}
        )
