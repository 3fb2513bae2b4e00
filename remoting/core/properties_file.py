"""Read and write Java's properties files, the text form of every RocketMQ configuration.

Pure: text in, entries out. The rules are those of ``java.util.Properties`` (natural and logical
lines, ``=``, ``:`` or white space between key and value, backslash escapes, ``#`` and ``!``
comments); a test compares them with Java's own reader. Two things differ on purpose: the text may
be UTF-8 (Java reads only Latin-1 correctly), and every entry has its line, for errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*\\?", re.DOTALL)
_ESCAPE = re.compile(r"\\(u.{0,4}|.|\Z)", re.DOTALL)


class PropertiesError(ValueError):
    """A text that Java's reader also refuses; ``line`` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@attrs.frozen
class Entry:
    """One key with its value; ``line`` is the line of the key, from 1 (0: not from a file)."""

    key: str
    value: str
    line: int = 0


def decode_text(data: bytes) -> str:
    """Decode a properties file: as UTF-8 if it is valid UTF-8, otherwise as Latin-1 like Java."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_entries(text: str) -> list[Entry]:
    """Read all entries in file order, repeated keys included.

    Raises: PropertiesError for an invalid ``\\u`` escape.
    """
    return [_entry(line, number) for number, line in _logical_lines(text)]


def parse_properties(text: str) -> dict[str, str]:
    """Read a properties text into a dict; of a repeated key the last value counts, as in Java."""
    return {entry.key: entry.value for entry in parse_entries(text)}


def format_properties(values: Mapping[str, str]) -> str:
    """Write ``key=value`` lines that ``parse_properties`` and Java read unchanged."""
    return "".join(
        f"{_escape(key, key=True)}={_escape(value, key=False)}\n" for key, value in values.items()
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines; yield (line number, text) of all but blanks and comments."""
    pending = ""
    start = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_WHITE)
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending


def _entry(line: str, number: int) -> Entry:
    found = _KEY.match(line)
    assert found is not None  # a key may be empty
    key, rest = found[0], line[found.end() :].lstrip(_WHITE)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_WHITE)
    return Entry(_unescape(key, number), _unescape(rest, number), number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text

    def meant(found: re.Match[str]) -> str:
        escape = found[1]
        if not escape.startswith("u"):
            return _ESCAPES.get(escape, escape)
        digits = escape[1:]
        if re.fullmatch(r"[0-9A-Fa-f]{4}", digits) is None:
            raise PropertiesError(
                number, f"malformed escape \\u{digits} (write \\u and four hex digits)"
            )
        return chr(int(digits, 16))

    characters = _ESCAPE.sub(meant, text)
    # Java strings are UTF-16: two escaped surrogates are one character.
    return characters.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape(text: str, *, key: bool) -> str:
    out: list[str] = []
    for position, character in enumerate(text):
        if character == " " and (key or position == 0):
            out.append("\\ ")
        elif character in "\t\n\r\f":
            out.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[character])
        elif character == "\\" or (character in "=:#!" and (key or position == 0)):
            out.append("\\" + character)
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[i] << 8 | units[i + 1]:04X}" for i in range(0, len(units), 2))
    return "".join(out)
