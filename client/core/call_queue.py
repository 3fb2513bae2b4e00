"""``CallQueue``: the way from any thread into the thread of an event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class CallQueue:
    """Functions that a loop calls soon, in their order: one wake-up for all that wait.

    A wake-up is a system call that hands the interpreter to the other thread: it costs several
    times what a call costs.
    """

    _wake: Callable[[Callable[[], None]], object]
    """Has the loop call a function, from any thread: ``TrioToken.run_sync_soon``, or a function
    that calls it a little later, when the thread has put all that it has to put."""
    _calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = attrs.field(
        factory=deque, init=False
    )
    _woken: bool = attrs.field(default=False, init=False)

    def put(self, function: Callable[..., object], *args: object) -> None:
        """Have a function called, from any thread; it must not raise.

        Raises: what the loop raises after its end, unless a wake-up was under way at its end.
        """
        self._calls.append((function, args))
        if self._woken:
            return
        try:
            self._woken = True
            self._wake(self._run)
        except BaseException:  # also an interrupt (Ctrl-C): the next call wakes the loop
            self._woken = False
            raise

    def wake(self) -> None:
        """Wake the loop, even if a wake-up is under way, which may have been lost with its thread.

        Raises: what the loop raises after its end.
        """
        self._wake(self._run)

    def _run(self) -> None:
        """Call what waits; runs in the loop."""
        self._woken = False  # first: what is put from now on wakes the loop again
        for _ in range(len(self._calls)):
            function, args = self._calls.popleft()
            function(*args)
