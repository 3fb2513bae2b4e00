"""POP_ROLLBACK (200056): bring the state of POP from Java's key-value store into the log.

A broker of TrioMQ keeps it in the log only, so that nothing is left to do. Source:
broker/processor/AdminBrokerProcessor.java#transferPopToFsStore.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.requests import Request, Response

KEY_VALUE_STORE = "kvStore"
"""The folder of a Java broker with ``popConsumerKVServiceEnable``; RocksDB names its newest state
in the file CURRENT.
"""


@attrs.frozen
class PopRollbacks:
    """The handler. ``root``: the store's directory."""

    root: Path

    def roll_back(self, request: Request) -> Response:
        """Agree, unless a Java broker has left messages in flight. Raises: Rejected."""
        folder = self.root / KEY_VALUE_STORE
        if (folder / "CURRENT").exists():
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"{folder} has messages in flight of a Java broker with popConsumerKVServiceEnable,"
                " in RocksDB, which this broker does not read: start the Java broker on this"
                " directory once more, send it POP_ROLLBACK, and delete the folder",
            )
        return Response()
