"""The state of a controller that is alone: one file, replaced at each change.

A change is on the disk before anybody sees it. Three controllers will have a log in its place.
"""

from __future__ import annotations

import logging
from pathlib import Path

import attrs
import trio

from triomq.namesrv.controller.commands import Command
from triomq.namesrv.controller.state import ControllerState, restore
from triomq.namesrv.controller.transitions import apply
from triomq.remoting.core.atomic_file import DamagedFile, read_file, replace_file
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

FILE_NAME = "controller.json"


@attrs.define(eq=False)
class StateFile:
    """The state that is on the disk, and the only way to change it."""

    path: Path
    state: ControllerState = attrs.field(factory=ControllerState)
    _changing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @classmethod
    def open(cls, folder: Path) -> StateFile:
        """Read the state; without a file it is empty.

        Raises: ConfigError if the file cannot be read. Then a master may exist that this controller
            does not know: an empty state would let anybody become master.
        """
        path = folder / FILE_NAME
        try:
            return cls(path, read_file(path, restore) or ControllerState())
        except (DamagedFile, OSError) as error:
            raise ConfigError(
                str(path),
                f"the controller's state cannot be read ({error})",
                "restore the file, or give the name server the right to read it",
            ) from None

    async def commit(self, command: Command) -> ControllerState:
        """Apply a command, write the new state, and then publish it.

        Returns: the state after the command.
        Raises: Rejected.
        Checkpoint: always.
        """
        async with self._changing:
            applied = apply(self.state, command)
            if applied.refusal is not None:
                raise applied.refusal
            if applied.state is not self.state:
                try:
                    await trio.to_thread.run_sync(_write, self.path, applied.state)
                except OSError as error:
                    raise Rejected(
                        ResponseCode.SYSTEM_ERROR,
                        f"the controller cannot write {self.path}: {explained(error)}; make room or"
                        " give it the right to write there, then it goes on",
                    ) from None
                self.state = applied.state
                _log.info("%s", command)
            return applied.state


def _write(path: Path, state: ControllerState) -> None:
    replace_file(path, state.snapshot())
