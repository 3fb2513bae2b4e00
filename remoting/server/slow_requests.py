"""Log requests that took long, with the time of each stage: where a request waits is the cause."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import attrs

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import request_name
from triomq.remoting.server.requests import Request

_log = logging.getLogger(__name__)
LINES = 10
"""in ten seconds; the next line says how many were left out"""
_MESSAGE = (
    "slow request %s of %s: %.0f ms (queue %.0f, handler %.0f, completion %.0f; pool %s, batch of"
    " %d)"
)


@attrs.define(eq=False)
class SlowRequests:
    """The log of one pool. ``seconds``: the threshold."""

    pool: str = ""
    seconds: float = math.inf
    limit: LogLimit = attrs.field(factory=LogLimit)

    def note(self, requests: Sequence[Request], begun: float, deferred: float, now: float) -> None:
        """Log the requests of a batch that took longer than the threshold.

        ``begun``: when the handler began, 0 for as soon as they were read; ``deferred``: when it
        left the answer to be completed by something else (the disk, a slave), 0 if it did not.
        """
        for request in requests:
            arrived = request.arrived
            if now - arrived <= self.seconds:
                continue
            start = max(begun, arrived)
            end = deferred or now
            stages = {
                "queue_ms": (start - arrived) * 1000,
                "handler_ms": (end - start) * 1000,
                "completion_ms": (now - end) * 1000,
            }
            name = request_name(request.code)
            peer = request.connection.peer_text
            self.limit.log(
                _log,
                logging.WARNING,
                _MESSAGE,
                name,
                peer,
                (now - arrived) * 1000,
                *stages.values(),
                self.pool,
                len(requests),
                lines=LINES,
                fields={
                    "request": name,
                    "code": request.code,
                    "peer": peer,
                    "pool": self.pool,
                    "batch": len(requests),
                    "body_bytes": len(request.body),
                    "total_ms": round((now - arrived) * 1000, 3),
                    **{stage: round(value, 3) for stage, value in stages.items()},
                },
            )
