"""Commands of the server to one client, until the client's Telemetry stream has taken them."""

from __future__ import annotations

from collections import deque

import attrs
import trio

from triomq.remoting.grpc.apache_rocketmq.service_pb2 import TelemetryCommand

COMMANDS_MAX = 1024
COMMANDS_BYTES_MAX = 8 * 1024 * 1024
"""Two messages of the largest size; one larger command is taken when none waits."""


@attrs.define(eq=False)
class WaitingCommands:
    """The commands of one stream. A client that does not read gets no more of them."""

    _commands: deque[TelemetryCommand] = attrs.field(factory=deque, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _put: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _empty: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __len__(self) -> int:
        return len(self._commands)

    def put(self, command: TelemetryCommand) -> bool:
        """Add a command; return False if too many wait. Checkpoint: never."""
        size = command.ByteSize()
        full = len(self._commands) >= COMMANDS_MAX or self._bytes + size > COMMANDS_BYTES_MAX
        if full and self._commands:
            return False
        self._commands.append(command)
        self._bytes += size
        self._put.unpark()
        return True

    async def put_alone(self, command: TelemetryCommand) -> None:
        """Add a command when no other waits. Checkpoint: maybe."""
        while self._commands:
            await self._empty.park()
        self.put(command)

    async def take(self) -> TelemetryCommand:
        """Return the oldest command. Checkpoint: maybe, only to wait for one."""
        while not self._commands:
            await self._put.park()
        command = self._commands.popleft()
        self._bytes -= command.ByteSize()
        if not self._commands:
            self._empty.unpark_all()
        return command
