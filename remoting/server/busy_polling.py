"""Whether a selector that has nothing to do looks again at once instead of going to sleep.

Who sends one request at a time sends the next one some 100 µs after the answer. Sleeping costs more than those: the processor goes
idle, the other one must wake it, and it finds its caches cold; on a virtual machine this alone can halve the rate. So a selector whose
last waits were short asks its poller for a moment before it sleeps, and it stops asking where that has not paid.
Nothing here reads a clock or a socket: the times are given, in seconds.
"""

import attrs

_CREDIT_MAX = 8
_CREDIT_NEW = 2
_PRICE_MIN = 4
_PRICE_MAX = 4096
_PATIENCE_MIN = 1 / 8  # of the limit


@attrs.define(eq=False)
class BusyPolling:
    """Decides by credit: a look that finds something earns some, a look in vain costs as much. Who has none left pays for new credit by
    short sleeps, each time twice as many; looks that find something make that cheap again. So where more than half of the looks find
    something they go on, and where they do not they are soon rare.

    `limit` is how long a look may take, `patience` how long the next one does: twice as long as those usually take that find something. `turn` is how long looks that find something may keep everything else that waits for
    sockets or threads in this loop from its turn.
    """

    limit: float
    turn: float = 300e-6
    patience: float = attrs.field(init=False)
    _usual: float = attrs.field(init=False)
    _credit: int = attrs.field(default=0, init=False)
    _price: int = attrs.field(default=_PRICE_MIN, init=False)
    _owed: int = attrs.field(default=_PRICE_MIN, init=False)
    _turned: float = attrs.field(default=float("-inf"), init=False)

    def __attrs_post_init__(self) -> None:
        self.patience, self._usual = self.limit, self.limit / 2

    @property
    def worthwhile(self) -> bool:
        """Is a look likely to find something?"""
        return self._credit > 0

    def turn_due(self, now: float) -> bool:
        """Have the others been kept from their turn for too long?"""
        return now - self._turned > self.turn

    def turned(self, now: float) -> None:
        """The others had their turn."""
        self._turned = now

    def found(self, seconds: float) -> None:
        """A look found something after so long; 0 if it was there already, which says nothing of the others."""
        if seconds:
            self._usual += (seconds - self._usual) / 8
            self.patience = min(max(2 * self._usual, _PATIENCE_MIN * self.limit), self.limit)
        if self._credit < _CREDIT_MAX:
            self._credit += 1
        if self._price > _PRICE_MIN:
            self._price //= 2

    def missed(self) -> None:
        """A look took all of `patience` and found nothing: too short, perhaps."""
        self.patience = min(2 * self.patience, self.limit)
        self._credit -= 1
        if not self._credit:
            self._owed = self._price
            if self._price < _PRICE_MAX:
                self._price *= 2

    def slept(self, seconds: float) -> None:
        """A sleep took so long. The time of waking up is in it: up to twice the limit is short."""
        if not self._credit and seconds <= 2 * self.limit:
            self._owed -= 1
            if self._owed <= 0:
                self._credit = _CREDIT_NEW
