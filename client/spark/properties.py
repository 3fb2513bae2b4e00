"""Read message properties into Arrow arrays.

The separators of all rows are found at once, and only wanted values are cut out.

Properties are stored as ``name 0x01 value 0x02 name 0x01 value 0x02 …``. As in RocketMQ's parser, a
piece without separator, with an empty name or an empty value is skipped, the first 0x01 of a piece
divides it, the last 0x02 of a row may be missing (clients 4.9), and of two equal names the later
wins.
Source: common/…/MessageDecoder.java#string2messageProperties
"""

from typing import cast

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triomq.client.spark.records import PADDING, Integers, Span, cut

KEYS = "KEYS"
TAGS = "TAGS"
UNIQUE_KEY = "UNIQ_KEY"
SHARDING_KEY = "__SHARDINGKEY"

NAME_END = 0x01
VALUE_END = 0x02
BIT_NAMES_MAX = 62
"""the number of different names that fit in an int64 as bits"""


@attrs.define(eq=False, kw_only=True)
class PropertyTable:
    """The properties of some messages, one entry per (message, name), in the order of messages."""

    rows: int
    raw: bytes
    """the properties of all messages as valid UTF-8, with padding"""
    row: Integers
    """message number of each entry, ascending"""
    names: Span
    values: Span

    def column(self, name: str) -> pa.Array:
        """Return the property ``name`` of every message; null if it is missing."""
        wanted = name.encode()
        same_length = np.flatnonzero(self.names.lengths == len(wanted))
        texts: npt.NDArray[np.bytes_] = np.ndarray(
            (len(self.raw) - len(wanted) + 1,), f"S{len(wanted)}", self.raw, 0, (1,)
        )
        found = same_length[texts[self.names.starts[same_length]] == wanted]
        if np.array_equal(self.row[found], np.arange(self.rows)):  # fast path: each has one
            return self._texts(self.values.only(found))
        entry = np.full(self.rows, -1, np.int64)
        entry[self.row[found]] = found  # of several entries the last wins, as in RocketMQ
        missing = entry < 0
        if missing.all():
            return pa.nulls(self.rows, pa.string())
        entry[missing] = found[0]
        values = self._texts(
            Span(
                starts=self.values.starts[entry],
                lengths=np.where(missing, 0, self.values.lengths[entry]),
            )
        )
        if not missing.any():
            return values
        return values.take(pa.array(np.arange(self.rows), mask=missing))

    def maps(self) -> pa.MapArray:
        """Return every message's properties as a map."""
        names = self._texts(self.names)
        keep = self._without_duplicates(
            cast("Integers", names.dictionary_encode().indices.to_numpy().astype(np.int64))
        )
        row, values = self.row, self.values
        if keep is not None:
            row, names, values = (
                row[keep],
                names.take(pa.array(keep)),
                Span(starts=values.starts[keep], lengths=values.lengths[keep]),
            )
        ends = np.cumsum(np.bincount(row, minlength=self.rows))
        offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
        return cast("pa.MapArray", pa.MapArray.from_arrays(offsets, names, self._texts(values)))

    def _texts(self, span: Span) -> pa.Array:
        """Return strings, without a check: a cut at an ASCII separator keeps UTF-8 valid."""
        data = cut(self.raw, span)
        return pa.Array.from_buffers(pa.string(), len(data), data.buffers())

    def _without_duplicates(self, codes: Integers) -> Integers | None:
        """Return the entries that stay if a message has a name twice; None if no message has.

        Fast path: without duplicates the sum of a message's name bits equals their union.
        """
        if not len(codes):
            return None
        if int(codes.max()) < BIT_NAMES_MAX:
            bits = np.left_shift(np.int64(1), codes)
            starts = np.flatnonzero(np.diff(self.row, prepend=-1))
            if (np.add.reduceat(bits, starts) == np.bitwise_or.reduceat(bits, starts)).all():
                return None
        identity = self.row * (int(codes.max()) + 1) + codes
        _, last = np.unique(identity[::-1], return_index=True)
        return np.sort(len(identity) - 1 - last)


def find_properties(stored: pa.Array) -> PropertyTable:
    """Find names and values in the properties of all messages.

    ``stored``: a binary array, one element per message.
    """
    text = checked_text(stored)
    offsets = np.frombuffer(text.buffers()[1], np.int32, len(text) + 1).astype(np.int64)
    raw = bytes(text.buffers()[2] or b"")[: offsets[-1]] + PADDING
    data = np.frombuffer(raw, np.uint8, int(offsets[-1]))
    begins, middle, ends = pieces(data, offsets)
    whole = (begins < middle) & (middle + 1 < ends)
    if not whole.all():
        begins, middle, ends = begins[whole], middle[whole], ends[whole]
    return PropertyTable(
        rows=len(text),
        raw=raw,
        row=np.repeat(np.arange(len(text)), np.diff(np.searchsorted(begins, offsets))),
        names=Span(starts=begins, lengths=middle - begins),
        values=Span(starts=middle + 1, lengths=ends - middle - 1),
    )


def pieces(data: npt.NDArray[np.uint8], offsets: Integers) -> tuple[Integers, Integers, Integers]:
    """Return begin, first divider and end of each piece of the properties, in order.

    ``data``: the properties of all messages; ``offsets``: where those of each message begin.
    """
    filled = np.flatnonzero(np.diff(offsets))
    unended = filled[data[offsets[filled + 1] - 1] != VALUE_END]
    marks = np.flatnonzero(data <= VALUE_END)
    kinds = data[marks]
    if (
        not len(unended)
        and len(marks) % 2 == 0
        and (kinds[::2] == NAME_END).all()
        and (kinds[1::2] == VALUE_END).all()
    ):  # fast path: each piece has one divider
        ends = marks[1::2]
        return np.concatenate(([0], ends + 1))[: len(ends)], marks[::2], ends
    ends = marks[kinds == VALUE_END]
    widths = np.ones(len(ends), np.int64)
    if len(unended):
        # A piece that ends with its row has no separator to skip.
        ends = np.concatenate((ends, offsets[unended + 1]))
        widths = np.concatenate((widths, np.zeros(len(unended), np.int64)))
        order = np.lexsort((widths, ends))
        ends, widths = ends[order], widths[order]
    begins = np.concatenate(([0], (ends + widths)[:-1])).astype(np.int64)[: len(ends)]
    dividers = np.concatenate((marks[kinds == NAME_END], [len(data) + 1]))
    return begins, dividers[np.searchsorted(dividers, begins)], ends


def checked_text(data: pa.Array) -> pa.Array:
    """Return bytes as strings: valid UTF-8 unchanged, otherwise with U+FFFD for undecodable bytes.

    Spark does not check string columns, and producers may send any bytes as keys, tags and
    properties.
    """
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if each is None else each.decode("utf-8", "replace")
                for each in data.to_pylist()
            ],
            pa.string(),
        )
