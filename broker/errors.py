"""What keeps a broker from starting or running, as one tree, and the exit code of each.

::

    BrokerError
    └── NoNameServer     no name server took the registration, and the broker was told to insist

The store has its own tree (`triomq.broker.store.errors`), a table of `services` that cannot be read is a DamagedTable,
configuration raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Sequence

from triomq.broker.services.persisted import DamagedTable
from triomq.broker.store.errors import FullAtStart, StoreDamaged, StoreDenied, StoreLocked
from triomq.remoting.process import ExitCode, ExitCodes


class BrokerError(Exception):
    """Base of every error of this package outside the store."""


class NoNameServer(BrokerError):
    """None of the name servers could be reached; ``reasons`` has one text for each."""

    def __init__(self, addresses: Sequence[str], reasons: Sequence[str] = ()) -> None:
        detail = f" ({'; '.join(reasons)})" if reasons else ""
        super().__init__(f"no name server answers: {', '.join(addresses)}{detail}; start one, or correct namesrvAddr (option -n)")
        self.addresses = tuple(addresses)
        self.reasons = tuple(reasons)


EXIT_CODES: ExitCodes = {
    StoreLocked: ExitCode.STORE_LOCKED,
    StoreDamaged: ExitCode.STORE_DAMAGED,
    DamagedTable: ExitCode.STORE_DAMAGED,
    StoreDenied: ExitCode.CONFIGURATION,
    NoNameServer: ExitCode.NO_NAME_SERVER,
    FullAtStart: ExitCode.FAILED,  # a service manager tries again
}
