"""The commands of mqadmin; what each does is said once, in ``core/commands.txt``.

Only the module of the wanted command is imported: start-up time.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triomq.client.mqadmin.core.command_list import LIST

if TYPE_CHECKING:
    from triomq.client.mqadmin.core.command import AdminCommand


def load(name: str) -> AdminCommand:
    """Return the command of that name in the list."""
    return next(command for command in commands_of(LIST[name].module) if command.name == name)


def commands_of(module: str) -> Sequence[AdminCommand]:
    """Return the commands of one module."""
    commands: Sequence[AdminCommand] = importlib.import_module(f"{__name__}.{module}").COMMANDS
    return commands
