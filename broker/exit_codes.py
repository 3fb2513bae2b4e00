"""Exit codes of a broker's own errors; ``remoting/core/process.py`` has those of all others."""

from __future__ import annotations

from triomq.broker.roles.second_master import SecondMaster
from triomq.broker.services.persisted import DamagedTable
from triomq.broker.store.core.errors import (
    FullAtStart,
    NoFilesLeft,
    StoreDamaged,
    StoreDenied,
    StoreLocked,
)
from triomq.remoting.core.process import ExitCode, ExitCodes

EXIT_CODES: ExitCodes = {
    StoreLocked: ExitCode.STORE_LOCKED,
    StoreDamaged: ExitCode.STORE_DAMAGED,
    DamagedTable: ExitCode.STORE_DAMAGED,
    StoreDenied: ExitCode.CONFIGURATION,
    FullAtStart: ExitCode.FAILED,  # a service manager starts it again
    NoFilesLeft: ExitCode.FAILED,
    SecondMaster: ExitCode.FAILED,
}
