"""ClusterDoctor: the checks of ``mqadmin doctor --cluster``, once a minute, for the first page."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import attrs
import trio

from triomq.client.admin.doctor.cluster_checks import OpenAdmin, examine
from triomq.client.core.background import sole_error
from triomq.remoting.core.findings import Finding, Level, problem

logger = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
LIMIT_SECONDS = 20.0


@attrs.define(eq=False)
class ClusterDoctor:
    """The findings of the last examination. Lag is not examined: the poller knows it."""

    namesrvs: Sequence[str]
    open_admin: OpenAdmin
    found: Sequence[Finding] | None = None
    """None: no examination has ended"""
    at: float = 0.0
    """when it ended, in seconds since 1970"""

    async def examine_forever(self) -> None:
        """Run the task of the console until cancelled."""
        while True:
            self.found, self.at = await self._examined(), time.time()
            await trio.sleep(EVERY_SECONDS)

    async def _examined(self) -> Sequence[Finding]:
        failure = f"it takes longer than {LIMIT_SECONDS:g} s"
        with trio.move_on_after(LIMIT_SECONDS):
            try:
                return await examine(self.namesrvs, self.open_admin, None)
            except Exception as error:  # whatever a server answers, the other pages go on
                logger.warning("the cluster cannot be examined", exc_info=error)
                failure = str(sole_error(error))
        fix = "`mqadmin doctor --cluster` asks once more; the log of the console has the error"
        return [problem("cluster", "examination", failure, fix)]

    def about(self, name: str, broker_id: int) -> list[Finding]:
        """Return what asks for a change at a broker, or in its group."""
        names = {name, f"{name}:{broker_id}"}
        return [one for one in self.to_do if one.check.split(" ", 1)[0] in names]

    @property
    def to_do(self) -> list[Finding]:
        """Return the findings that ask for a change: problems first, then advice."""
        return [
            finding
            for level in (Level.PROBLEM, Level.ADVICE)
            for finding in self.found or ()
            if finding.level is level
        ]
