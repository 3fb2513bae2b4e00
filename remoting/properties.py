"""Reader and writer of Java's properties files: the text form of every RocketMQ configuration.

Pure: text in, entries out.  The rules are those of ``java.util.Properties`` (natural and logical lines, ``=``, ``:`` or
white space between key and value, backslash escapes, ``#`` and ``!`` comments); a test compares them with Java's own
reader.  Two things differ on purpose: the text may be UTF-8 (Java reads Latin-1 and garbles the rest), and every entry
remembers its line, so that an error can name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")


class PropertiesError(ValueError):
    """A text that Java's reader refuses too; ``line`` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@attrs.frozen
class Entry:
    """One key with its value; ``line`` is where the key stands, counted from 1 (0: it comes from no file)."""

    key: str
    value: str
    line: int = 0


def decode_text(data: bytes) -> str:
    """Turn the bytes of a properties file into text: UTF-8 if it is valid UTF-8, else Latin-1 as in Java."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_entries(text: str) -> list[Entry]:
    """Read all entries in file order, repeated keys included; raise PropertiesError for a broken ``\\u`` escape."""
    return [_entry(line, number) for number, line in _logical_lines(text)]


def parse_properties(text: str) -> dict[str, str]:
    """Read a properties text into a dict; of a repeated key the last value counts, as in Java."""
    return {entry.key: entry.value for entry in parse_entries(text)}


def format_properties(values: Mapping[str, str]) -> str:
    """Write ``key=value`` lines that `parse_properties` and Java read back unchanged."""
    return "".join(f"{_escape(key, key=True)}={_escape(value, key=False)}\n" for key, value in values.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines; yield (line number, text without leading white space) of all but blanks and comments."""
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
    key_end = len(line)
    position = 0
    while position < len(line):
        character = line[position]
        if character == "\\":
            position += 2
            continue
        if character in "=:" or character in _WHITE:
            key_end = position
            break
        position += 1
    rest = line[key_end:].lstrip(_WHITE)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_WHITE)
    return Entry(_unescape(line[:key_end], number), _unescape(rest, number), number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append("" if character == "\\" else character)
            continue
        character = text[position]
        position += 1
        if character == "u":
            digits = text[position : position + 4]
            if re.fullmatch(r"[0-9A-Fa-f]{4}", digits) is None:
                raise PropertiesError(number, f"malformed escape \\u{digits} (write \\u and four hex digits)")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(character, character))
    # Java strings are UTF-16: two escaped surrogates are one character
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


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
