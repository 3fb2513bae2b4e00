"""Message ids: the unique ids that producers make, and the offset ids that say where a record lies.

Both are upper-case hexadecimal, of 32 characters for IPv4 and 56 for IPv6. Source:
common/…/message/MessageClientIDSetter.java, MessageDecoder.java#createMessageId.
"""

from datetime import datetime, timedelta, timezone
from struct import Struct

_HOST_TAIL = Struct(">iq")
HEX = [f"{byte:02X}" for byte in range(256)]
"""byte → its two digits: twice as fast as formatting"""


def decode_offset_message_id(message_id: str) -> tuple[bytes, int, int]:
    """Return the address bytes, the port and the log offset that an offset id holds.

    A unique id has the same length and alphabet, so success does not prove that the text is an
    offset id.

    Raises: ValueError if the text cannot be an offset id.
    """
    if len(message_id) not in (32, 56):
        raise ValueError(
            f"{message_id!r} is not an offset message id: 32 or 56 hexadecimal digits expected"
        )
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        raise ValueError(f"{message_id!r} is not an offset message id: not hexadecimal") from None
    if len(data) != len(message_id) // 2:
        raise ValueError(f"{message_id!r} is not an offset message id: blanks inside")
    port, log_offset = _HOST_TAIL.unpack_from(data, len(data) - _HOST_TAIL.size)
    return data[: -_HOST_TAIL.size], port, log_offset


class UniqueIds:
    """Makes the ids that producers give their messages (UNIQ_KEY).

    Ids of one process sort by time. Layout: address (4 or 16 bytes), pid (low 16 bits), ``seed``
    (32 bits; Java takes a hash, any random number serves), milliseconds since the local start of
    the month (32 bits), counter (16 bits). They are unique up to 65,535 ids per millisecond. Make a
    new object after a fork.
    """

    def __init__(self, address: bytes, pid: int, seed: int, *, utc_offset_seconds: int = 0) -> None:
        if len(address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")
        fixed = address + (pid & 0xFFFF).to_bytes(2, "big") + (seed & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = fixed.hex().upper()
        self._counter = 0
        self._stamp = ""
        self._last_ms = -1
        self._zone = timezone(timedelta(seconds=utc_offset_seconds))
        self._month_start_ms = self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """Return one more id: 32 characters for IPv4, 56 for IPv6."""
        if now_ms != self._last_ms:  # at a high rate, many ids share a millisecond
            self._set_stamp(now_ms)
        counter = self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._stamp}{HEX[counter >> 8]}{HEX[counter & 0xFF]}"

    def series(self, now_ms: int, count: int) -> tuple[str, int]:
        """Make several ids for a loop that must not call ``next`` for each.

        Returns: their common begin, and the counter of the first. That of the id ``n`` later is
            ``(first + n) & 0xFFFF``; its four digits follow the begin.
        """
        self._set_stamp(now_ms)
        first = self._counter + 1
        self._counter = (self._counter + count) & 0xFFFF
        return self._stamp, first

    def _set_stamp(self, now_ms: int) -> None:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._find_month(now_ms)
        self._stamp = f"{self._prefix}{(now_ms - self._month_start_ms) & 0xFFFFFFFF:08X}"
        self._last_ms = now_ms

    def _find_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, self._zone)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + timedelta(days=32)).replace(day=1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(end.timestamp() * 1000)
