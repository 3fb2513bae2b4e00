"""Read the fields of a form or an address, within limits, and say what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from urllib.parse import parse_qsl

import attrs
from starlette.requests import Request

from triomq.client.console.core.catalogue import DEFAULT_LANGUAGE, texts_of

FORM_BYTES_MAX = 1 << 20
"""a test message and its properties"""
FIELDS_MAX = 500


LABELS = {
    "actions": "policies.actions",
    "address": "groups.address",
    "begin": "messages.begin",
    "broker": "brokers.name",
    "by": "groups.by",
    "client": "groups.client",
    "cluster": "brokers.cluster",
    "end": "messages.end",
    "from": "policies.sources",
    "group": "groups.name",
    "key": "config.key",
    "name": "form.named",
    "offset": "groups.offset",
    "password": "login.password",
    "perm": "topics.perm",
    "queue": "topics.queue",
    "queues": "topics.queues",
    "read_queues": "topics.read_queues",
    "resource": "policies.resource",
    "sources": "policies.sources",
    "subject": "policies.subject",
    "tag": "messages.tag",
    "target": "groups.target",
    "time": "groups.time",
    "topic": "topics.name",
    "type": "topics.type",
    "value": "config.value",
    "write_queues": "topics.write_queues",
}
"""field → key of the text that names it to users"""


class FormInvalid(ValueError):
    """A form that cannot be used; its string is the English text.

    Attributes:
        key: of the text that tells the user, with its ``values``.
        field: that the text is about; empty if it is about the whole form.
    """

    def __init__(self, key: str, field: str = "", /, **values: object) -> None:
        super().__init__(texts_of(DEFAULT_LANGUAGE)[key].format(**values))
        self.field, self.key, self.values = field, key, values


@attrs.frozen
class FormRefusal:
    """Why a form was not carried out, for its user."""

    text: str
    field: str = ""
    """that the text is about; empty if it is about the whole form"""
    english: bool = False
    """the text is not in the user's language"""
    status: int = 400
    """of the answer"""


@attrs.frozen
class FormFields:
    """The fields of one form; a field may come several times."""

    _values: Mapping[str, Sequence[str]]

    def text(self, name: str) -> str:
        """Return a field without blanks around it, empty if it is missing."""
        values = self._values.get(name, ())
        return values[0].strip() if values else ""

    def raw(self, name: str) -> str:
        """Return a field as it came."""
        values = self._values.get(name, ())
        return values[0] if values else ""

    def all(self, name: str) -> Sequence[str]:
        return self._values.get(name, ())

    def needed(self, name: str) -> str:
        """Return a field that must be filled. Raises: FormInvalid."""
        value = self.text(name)
        if not value:
            raise FormInvalid("form.empty", name)
        return value

    def moment_ms(self, name: str, default_ms: int | None = None) -> int:
        """Return a local time, as ``datetime-local`` sends it, in milliseconds since 1970.

        Raises: FormInvalid.
        """
        text = self.text(name)
        if not text and default_ms is not None:
            return default_ms
        try:
            return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            raise FormInvalid("form.moment", name) from None

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number. Raises: FormInvalid."""
        text = self.text(name)
        if not text and default is not None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise FormInvalid("form.whole", name, low=low, high=high)
        return value


def fields_of(text: str) -> FormFields:
    """Parse an urlencoded text. Raises: FormInvalid."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise FormInvalid("form.fields", most=FIELDS_MAX) from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return FormFields(values)


async def read_form(request: Request) -> FormFields:
    """Read the body of a request. Raises: FormInvalid if it is too long or no form."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != (
        "application/x-www-form-urlencoded"
    ):
        raise FormInvalid("form.none")
    announced = request.headers.get("content-length", "0")
    if not announced.isdigit() or int(announced) > FORM_BYTES_MAX:
        raise FormInvalid("form.long", most=FORM_BYTES_MAX)
    parts: list[bytes] = []
    size = 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            size += len(part)
            if size > FORM_BYTES_MAX:
                raise FormInvalid("form.long", most=FORM_BYTES_MAX)
            parts.append(part)
    try:
        return fields_of(b"".join(parts).decode())
    except UnicodeDecodeError:
        raise FormInvalid("form.not_utf8") from None
