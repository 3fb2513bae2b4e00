"""What the client processes of ``bench_nats.py`` share: what they are asked for, when it began and
ended, and what it cost; needs nothing but Python.
"""

from __future__ import annotations

import json
import time
from typing import Any


def message_body(request: dict[str, Any]) -> bytes:
    """What each message of a request carries."""
    return b"x" * int(request["size"])


def publishing_end(request: dict[str, Any]) -> float:
    """Until when, by ``time.perf_counter``, a request to publish wants it done."""
    return time.perf_counter() + float(request["seconds"])


class Clock:
    """Begins when it is made; ``start`` begins again (a consumer's first message), ``stop`` ends it
    before things are taken down.
    """

    def __init__(self) -> None:
        self._stopped: tuple[float, float] | None = None
        self.start()

    def start(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self._stopped = time.perf_counter(), time.process_time()

    def answer(self, messages: int) -> str:
        """Return the answer in one line: messages, seconds, CPU seconds of this process."""
        ended = self._stopped or (time.perf_counter(), time.process_time())
        seconds, cpu = (end - begin for begin, end in zip(self._began, ended))
        return json.dumps({"messages": messages, "seconds": seconds, "cpu": cpu})
