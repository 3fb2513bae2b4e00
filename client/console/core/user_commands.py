"""The commands ``mqconsole user add``, ``remove`` and ``list``."""

from __future__ import annotations

import argparse
import getpass
import sys

from triomq.client.console.core.command_line import PROGRAM
from triomq.client.console.core.users import (
    NAME,
    ConsoleUser,
    UserRole,
    hash_password,
    read_users,
    write_users,
)
from triomq.remoting.core.process import ExitCode
from triomq.remoting.core.settings import ConfigError


def run_user_command(parsed: argparse.Namespace) -> ExitCode:
    """Change or list the users file; return the exit code of the process."""
    try:
        lines = _edit_users(parsed)
    except (ConfigError, ValueError, OSError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return ExitCode.CONFIGURATION
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return ExitCode.OK


def _edit_users(parsed: argparse.Namespace) -> list[str]:
    path = parsed.users_file
    users = read_users(path) if path.exists() else {}
    if parsed.action == "list":
        return [f"{user.name}\t{user.role.word}" for user in users.values()]
    if parsed.action == "remove":
        if users.pop(parsed.name, None) is None:
            raise ValueError(f"{path} has no user {parsed.name!r}: see `mqconsole user list`")
        write_users(path, users)
        return [f"removed {parsed.name}; open sessions end within a minute"]
    if NAME.fullmatch(parsed.name) is None:
        raise ValueError(
            f"the name {parsed.name!r} cannot be used: take 1 to 64 letters, digits and . _ @ -"
        )
    role = UserRole[parsed.role.upper()]
    users[parsed.name] = ConsoleUser(parsed.name, role, hash_password(_password(parsed)))
    write_users(path, users)
    return [f"wrote {parsed.name} as {role.word}"]


def _password(parsed: argparse.Namespace) -> str:
    if parsed.password_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise ValueError("the two passwords differ: try again")
    return first
