"""Short texts for reprs: sizes, first characters and names, but never the content of a body."""

from collections.abc import Mapping, Sized

TEXT_MAX = 80
NAMES_MAX = 8


def short_bytes(value: bytes | memoryview) -> str:
    """Return the size instead of the content."""
    return f"<{len(value):,} bytes>"


def short_text(value: str | None) -> str:
    """Return a text, cut off if it is long."""
    return repr(value) if value is None or len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]!r}…"


def short_names(value: Mapping[str, object]) -> str:
    """Return the first names of a mapping, without their values."""
    names = ", ".join(short_text(name) for name in list(value)[:NAMES_MAX])
    more = f", and {len(value) - NAMES_MAX} more" if len(value) > NAMES_MAX else ""
    return f"<{names}{more}>"


def short_count(value: Sized) -> str:
    """Return the number of elements."""
    return f"<{len(value):,}>"


def short_value(value: object) -> str:
    """Return the repr of a value, cut off if it is a long text or has many elements."""
    if isinstance(value, str):
        return short_text(value)
    if isinstance(value, Sized) and len(value) > NAMES_MAX:
        return short_count(value)
    return repr(value)


def masked(value: str) -> str:
    """Return the first characters of a key: enough to distinguish two."""
    return repr(f"{value[:3]}…")
