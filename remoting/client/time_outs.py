"""Whether a connection died without a word, as time-outs tell. Pure."""

from math import inf

import attrs

from triomq.remoting.core.socket_options import SILENT_SECONDS


@attrs.define(eq=False)
class TimeOuts:
    """The time-outs of one connection since the last byte of its peer.

    One time-out of ``SILENT_SECONDS`` without any byte shows that the peer is gone: a held pull,
    too, is answered before its caller gives up. So do several shorter ones in a row, if nothing
    came since the first of their requests was sent, for as long.
    """

    _since: float = attrs.field(default=inf, init=False)
    """when the first of these requests was sent"""
    _reads: int = attrs.field(default=-1, init=False)

    def timed_out(self, sent_at: float, reads: int, now: float) -> float:
        """Note a request that nothing answered; return the seconds of a deadly silence, or 0.

        ``reads``: of the connection, the same when the request was sent and now.
        """
        if reads != self._reads:
            self._since, self._reads = inf, reads
        self._since = min(self._since, sent_at)
        silent = now - self._since
        return silent if silent >= SILENT_SECONDS else 0.0
