"""A table for tests of saving: a function returns its content."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.broker.services.persisted import PersistedTable


@attrs.define(eq=False)
class CallbackTable(PersistedTable):
    """A table of which only the file matters."""

    content: Callable[[], bytes]

    def encode(self) -> bytes:
        return self.content()
