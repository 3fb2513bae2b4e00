"""The message that an application sends."""

from collections.abc import Iterable, Mapping
from typing import cast

import attrs

from triomq.remoting.protocol.short_repr import short_bytes, short_names, short_text


def _words(given: Iterable[str]) -> tuple[str, ...]:
    """Return the items of an iterable; keep anything else, which sending refuses with a reason."""
    if type(given) is tuple:
        return given
    return (
        cast("tuple[str, ...]", given)
        if isinstance(given, str | bytes) or not isinstance(given, Iterable)
        else tuple(given)
    )


@attrs.frozen(kw_only=True)
class Message:
    """A message as an application sends it."""

    topic: str = attrs.field(repr=short_text)
    body: bytes = attrs.field(repr=short_bytes)
    tag: str | None = attrs.field(default=None, repr=short_text)
    keys: tuple[str, ...] = attrs.field(
        default=(), converter=_words, repr=lambda keys: short_text(" ".join(keys))
    )
    properties: Mapping[str, str] = attrs.field(factory=dict, repr=short_names)
    flag: int = 0
    wait_stored: bool = True
