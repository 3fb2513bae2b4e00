"""Answers of name servers and brokers, kept for some seconds.

An answer is *fresh* for a time; then the next caller still gets it, and it is asked for again in
the background. An answer that nobody used for long is asked for again before it is given. An
answer stays while its source cannot be reached, so a cluster goes on without name servers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import attrs
import trio

from triomq.client.core.failure_log import FailureLog
from triomq.remoting.messaging.status_codes import Refused

logger = logging.getLogger(__name__)
V = TypeVar("V")

ABSENT_SECONDS = 2.0
"""How long "there is none" holds; shorter, since what is missing is often about to be made."""
RETRY_SECONDS = 1.0
"""How long an old answer holds after its source could not be asked."""
USABLE_PERIODS = 3
"""For how many times of freshness an answer is given before it is asked for again."""


@attrs.define(eq=False)
class KeptAnswer(Generic[V]):
    """What a source said. ``due``: when it is asked again; ``absent_since``: it has none since."""

    value: V | None
    asked_at: float
    due: float
    absent_since: float | None = None


@attrs.define(eq=False)
class LookUpUnderWay:
    """A question that was asked. ``error``: why it failed, for those who wait for the answer."""

    done: trio.Event = attrs.field(factory=trio.Event)
    error: Refused | None = None


@attrs.define(eq=False)
class CachedLookUps(Generic[V]):
    """The answers to one kind of question, by the name that is asked for.

    ``ask`` returns None if there is nothing of that name, and raises Refused.
    ``absence_believed_seconds``: a value that was known is given until its source has said for this
    long that it has none.
    """

    what: str
    ask: Callable[[str], Awaitable[V | None]]
    fresh_seconds: float
    entries_max: int
    spawn: Callable[..., None]
    absence_believed_seconds: float = 0.0
    failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)
    _answers: dict[str, KeptAnswer[V]] = attrs.field(factory=dict, init=False)
    _asking: dict[str, LookUpUnderWay] = attrs.field(factory=dict, init=False)

    async def get(self, name: str) -> V | None:
        """Return the value of a name, None if there is none.

        Raises: Refused if nothing is known and the source does not answer.
        Checkpoint: maybe, only to ask.
        """
        answer = self._answers.get(name)
        if answer is not None:
            now = trio.current_time()
            if now < answer.due:
                return answer.value
            usable = answer.asked_at + self.fresh_seconds * USABLE_PERIODS
            doubtful = answer.value is None or answer.absent_since is not None
            if not doubtful and now < usable:
                if name not in self._asking:
                    self._asking[name] = LookUpUnderWay()
                    self.spawn(self._refresh, name, name=f"look up {self.what}")
                return answer.value
        return await self._ask_now(name)

    def expire(self, concerns: Callable[[V], bool]) -> None:
        """Ask again at the next use, for the values that are concerned. Checkpoint: never."""
        for answer in self._answers.values():
            if answer.value is not None and concerns(answer.value):
                answer.due = answer.asked_at = -math.inf

    async def _ask_now(self, name: str) -> V | None:
        while (asking := self._asking.get(name)) is not None:
            await asking.done.wait()
            if asking.error is not None:
                raise Refused(asking.error.code, asking.error.message)
            answer = self._answers.get(name)
            if answer is not None and trio.current_time() < answer.due:
                return answer.value
        self._asking[name] = LookUpUnderWay()
        return await self._ask_once(name)

    async def _refresh(self, name: str) -> None:
        """Ask in the background. It does not fail unless the old answer was dropped meanwhile."""
        try:
            await self._ask_once(name)
        except Refused as error:
            self.failures.failed(self.what, error)

    async def _ask_once(self, name: str) -> V | None:
        """Ask, with ``_asking`` set, and clear it. Raises: Refused without an old answer."""
        try:
            value = await self.ask(name)
        except Refused as error:
            known = self._answers.get(name)
            if known is None or known.value is None:
                self._asking[name].error = error
                raise
            self.failures.failed(self.what, error)
            known.due = trio.current_time() + RETRY_SECONDS
            return known.value
        finally:
            self._asking.pop(name).done.set()
        self.failures.worked(self.what)
        return self._note(name, value)

    def _note(self, name: str, value: V | None) -> V | None:
        now = trio.current_time()
        # The newest answers are last, so that the oldest one makes room.
        known = self._answers.pop(name, None)
        if value is not None:
            self._answers[name] = KeptAnswer(value, now, now + self.fresh_seconds)
        elif known is not None and known.value is not None and self.absence_believed_seconds:
            since = now if known.absent_since is None else known.absent_since
            if now - since < self.absence_believed_seconds:
                value = known.value
            self._answers[name] = KeptAnswer(value, now, now + ABSENT_SECONDS, since)
        else:
            self._answers[name] = KeptAnswer(None, now, now + ABSENT_SECONDS)
        while len(self._answers) > self.entries_max:
            del self._answers[next(iter(self._answers))]
        return value
