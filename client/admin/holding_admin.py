"""An ``Admin`` that holds back the requests that change a server, and tells what they would do."""

from __future__ import annotations

from triomq.client.admin.admin import Admin
from triomq.client.admin.changes import Change, changes_of
from triomq.client.admin.unsent import UnsentRequest
from triomq.client.core.errors import TrioMQError


class HoldingAdmin(Admin):
    """An ``Admin`` that sends only requests that read."""

    async def __aenter__(self) -> HoldingAdmin:
        await super().__aenter__()
        self._requests.held = []
        return self

    @property
    def held(self) -> list[UnsentRequest]:
        """Return the requests that were not sent."""
        return self._requests.held or []

    async def changes(self) -> tuple[list[Change], dict[str, str]]:
        """Return what they would change, by server; and server → why that is not known."""
        changes: list[Change] = []
        failures: dict[str, str] = {}
        for held in list(self.held):
            try:
                changes += await changes_of(self, held)
            except TrioMQError as error:
                failures[held.address] = str(error)
        return sorted(changes, key=lambda change: change.server), failures
