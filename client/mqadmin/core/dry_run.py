"""Try a command: send the requests that read, hold back those that change, and show the changes.

``--dry-run`` prints this, and so does a command that deletes, before it asks. The command does
not know: it gets an ``Admin`` whose changes stay here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Values
from triomq.client.admin.documents import count_of
from triomq.client.admin.holding_admin import HoldingAdmin
from triomq.client.core.errors import ProtocolBroken
from triomq.client.mqadmin.core.result import Result
from triomq.remoting.protocol.codes import RequestCode

DRY_RUN_SHAPE = (
    '{"dryRun", "changes": [{"server", "request", "subject", "before": JSON, "after": JSON}],'
    ' "failures": {server: reason}}'
)
"""the document of ``--dry-run``"""


async def tried(
    admin: HoldingAdmin, run: Callable[[Admin, Values], Awaitable[Result]], values: Values
) -> Result:
    """Return the changes that a command would make.

    Raises: TrioMQError if the command fails before its first change.
    """
    failures: dict[str, str] = {}
    notes: Sequence[str] = ()
    try:
        result = await run(admin, values)
        failures |= result.failures or {}
        notes = result.notes
    except ProtocolBroken:
        if not admin.held:
            raise
        # The command wanted to read the answer to a request that was not sent.
    changes, unknown = await admin.changes()
    failures |= unknown
    servers = {held.address for held in admin.held} | failures.keys()
    lines = [line for change in changes for line in change.lines]
    sends = sum(held.code == RequestCode.SEND_MESSAGE_V2 for held in admin.held)
    lines += [f"{count_of(sends, 'message')} would be sent"] if sends else []
    return Result(
        document={"dryRun": True, "changes": [change.document for change in changes]},
        blocks=[*lines] or ["nothing would change"],
        failures=failures,
        asked=len(servers),
        notes=notes,
    )
