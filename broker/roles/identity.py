"""BrokerIdentity: the id that a controller has given this broker, for ever.

The file ``brokerIdentity`` is ``cluster#name#id``. While the broker applies,
``brokerIdentity-temp`` has ``cluster#name#id#check code``: a crash between the controller's answer
and the final file is harmless, since the same check code gets the same id again. Source:
store/…/ha/autoswitch/BrokerMetadata.java, TempBrokerMetadata.java.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from triomq.broker.store.core.errors import StoreDamaged
from triomq.remoting.core.atomic_file import SystemFiles, replace_file


@attrs.define(eq=False)
class IdentityFile:
    """The two files in the root of the store. Methods block for an fsync."""

    root: Path
    cluster: str
    broker_name: str
    files: SystemFiles

    @property
    def path(self) -> Path:
        return self.root / "brokerIdentity"

    @property
    def _applying(self) -> Path:
        return self.root / "brokerIdentity-temp"

    def load(self) -> int | None:
        """Return the id of this broker; None: it has none yet.

        Raises: StoreDamaged, also if the store is that of another broker.
        """
        if not self.path.exists():
            return None
        text = self.path.read_text(encoding="utf-8")
        cluster, _, rest = text.partition("#")
        name, _, number = rest.rpartition("#")
        if not number.isdecimal() or (cluster, name) != (self.cluster, self.broker_name):
            raise StoreDamaged(
                self.path,
                f"it says {text!r}, but this broker is {self.broker_name} of cluster"
                f" {self.cluster}",
                "set brokerClusterName and brokerName to what it says, or use another"
                " storePathRootDir",
            )
        return int(number)

    def application(self) -> tuple[int, str] | None:
        """Return (id, check code) of an application whose end was not seen."""
        if not self._applying.exists():
            return None
        fields = self._applying.read_text(encoding="utf-8").split("#")
        known = len(fields) == 4 and fields[2].isdecimal()
        return (int(fields[2]), fields[3]) if known else None

    def note_application(self, broker_id: int, check_code: str) -> None:
        """Write what this broker is about to apply for. Raises: OSError."""
        text = f"{self.cluster}#{self.broker_name}#{broker_id}#{check_code}"
        replace_file(self._applying, text.encode(), self.files)

    def forget_application(self) -> None:
        """Drop an application that was refused. Raises: OSError."""
        self._applying.unlink(missing_ok=True)

    def save(self, broker_id: int) -> None:
        """Write the id that was given. Raises: OSError."""
        text = f"{self.cluster}#{self.broker_name}#{broker_id}"
        replace_file(self.path, text.encode(), self.files)
        self.forget_application()
