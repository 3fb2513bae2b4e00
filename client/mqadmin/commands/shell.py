"""The command completion."""

from __future__ import annotations

from triomq.client.admin.arguments import Option, Values
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.completion_scripts import SCRIPTS
from triomq.client.mqadmin.core.result import Result


def shell_name(text: str) -> str:
    """Read bash, zsh or fish."""
    if text not in SCRIPTS:
        raise ValueError(f"use one of {', '.join(SCRIPTS)}")
    return text


async def completion(options: Values) -> Result:
    shell = options.text("shell")
    script = SCRIPTS[shell]
    return Result(document={"shell": shell, "script": script}, blocks=[script.rstrip()])


COMMANDS = (
    AdminCommand("completion", local=completion, own_access=True, effect=Effect.ACTS).with_options(
        Option("SHELL", "bash, zsh or fish", shell_name, required=True)
    ),
)
