"""The name servers of a client: which is asked first, and for how long before the next one. Pure.

Name servers know the same and know nothing of each other, so one that hangs must not cost a whole
time-out while another answers. Whoever asks one of them takes ``turns``: the SDK, administration,
the proxy, brokers that look up routes, and Spark on blocking sockets.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf

import attrs

FIRST_SECONDS = 0.4
"""How long a name server may be silent before the next one is asked."""
SILENT_SECONDS = 30.0
"""How long one that was silent is asked after the others."""


@attrs.define(eq=False)
class Turn:
    """One request to one name server; without ``answered``, the next one has its turn."""

    address: str
    seconds: float
    """time limit of the request"""
    answered: bool = attrs.field(default=False, init=False)
    """set by the caller: it answered, although the caller goes on to ask others"""


@attrs.define(eq=False)
class NameServers:
    """The name servers, and which of them is asked first: the last one that answered."""

    addresses: Sequence[str]
    _current: int = 0
    """index of the server to ask first; a random start spreads the clients"""
    _silent: dict[str, float] = attrs.field(factory=dict, init=False)
    """address -> until when it counts as silent (the caller's clock): it did not answer in time"""

    def turns(
        self, clock: Callable[[], float], deadline: float, reasons: dict[str, str]
    ) -> Iterator[Turn]:
        """Yield whom to ask and for how long, until the caller breaks off or all have failed.

        One that says nothing for ``FIRST_SECONDS`` gives way to the next, and is asked again only
        if no other answers. One that failed before its time was over is not asked again.
        ``reasons``: address -> why it did not answer; gets those for which no time was left.
        """
        addresses = self.order(clock())
        first = [(address, FIRST_SECONDS) for address in addresses if len(addresses) > 1]
        plan = [*first, *((address, inf) for address in addresses)]
        done: set[str] = set()
        answered = False
        for index, (address, limit) in enumerate(plan):
            now = clock()
            if address in done or (answered and self.is_silent(address, now)):
                continue
            left = {each for each, _ in plan[index:]} - done
            seconds = min(limit, (deadline - now) / len(left))
            if seconds <= 0:
                reasons.setdefault(address, "no time was left to ask it")
                continue
            turn = Turn(address, seconds)
            yield turn
            answered = answered or turn.answered
            if not turn.answered and clock() - now >= seconds:
                self.was_silent(address, clock())
            else:
                done.add(address)

    def order(self, now: float) -> list[str]:
        """Return all addresses, the current one first and those that are silent last."""
        start = self._current % len(self.addresses)
        turned = [*self.addresses[start:], *self.addresses[:start]]
        return sorted(turned, key=lambda address: self.is_silent(address, now))

    def is_silent(self, address: str, now: float) -> bool:
        return self._silent.get(address, -inf) > now

    def was_silent(self, address: str, now: float) -> None:
        """Ask this name server after the others for the next ``SILENT_SECONDS``."""
        self._silent[address] = now + SILENT_SECONDS

    def answered(self, address: str) -> None:
        """Ask this name server first from now on."""
        self._silent.pop(address, None)
        if address in self.addresses:  # it may have left the list
            self._current = self.addresses.index(address)

    def replace(self, addresses: Sequence[str]) -> list[str]:
        """Use a new list; return the removed addresses. If listed, the current server stays."""
        gone = [address for address in self.addresses if address not in addresses]
        present = self.addresses[self._current % len(self.addresses)]
        self.addresses = list(addresses)
        self._current = (
            self.addresses.index(present)
            if present in self.addresses
            else self._current % len(self.addresses)
        )
        return gone
