"""Commands about contexts: contextList, contextShow, contextSet, contextUse, contextDelete."""

from __future__ import annotations

import getpass
import os
import sys

import attrs

from triomq.client.admin.arguments import Option, UsageError, Values
from triomq.client.admin.contexts import (
    Context,
    ContextFile,
    chosen_context,
    context_name,
    contexts_path,
    read_contexts,
    write_contexts,
)
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.result import Document, Result, table_of
from triomq.remoting.protocol.short_repr import masked

SECRET_LENGTH_MAX = 1000


def document_of(context: Context) -> dict[str, object]:
    """Return a context without its secret key, and with the beginning of its access key."""
    return {
        "name": context.name,
        "namesrvAddr": context.namesrv,
        "tls": context.tls,
        "credentials": context.credentials,
        "accessKey": None if context.access_key is None else masked(context.access_key).strip("'"),
        "secretKeySet": context.secret_key is not None,
    }


async def context_list(options: Values) -> Result:
    file = read_contexts(contexts_path())
    rows = [
        {**document_of(context), "current": name == file.current}
        for name, context in sorted(file.contexts.items())
    ]
    table = table_of(
        rows,
        {
            "Name": "name",
            "Current": lambda row: "*" if row["current"] else None,
            "Name servers": "namesrvAddr",
            "TLS": "tls",
            "Credentials": lambda row: row["credentials"] or row["accessKey"],
        },
    )
    note = "there are no contexts; make one with `mqadmin context set NAME -n ADDRESSES`"
    return Result(
        document={"contexts": rows, "current": file.current},
        blocks=[table],
        notes=[] if rows else [note],
    )


async def context_show(options: Values) -> Result:
    name = options.maybe_text("name")
    file = read_contexts(contexts_path())
    context = chosen_context(options) if name is None else file.named(name)
    if context is None:
        raise UsageError(
            "no context is in use: name one, or choose one with `mqadmin context use NAME`"
        )
    document = document_of(context)
    lines = [
        f"{key:<14}{'' if value is None else value}".rstrip() for key, value in document.items()
    ]
    return Result(document=document, blocks=lines)


async def context_set(options: Values) -> Result:
    path, name = contexts_path(), options.text("name")
    file = read_contexts(path)
    old = file.contexts.get(name) or Context(name=name)
    changes: dict[str, str] = {}
    if (namesrv := options.maybe_text("namesrvAddr")) is not None:
        if namesrv:
            # Imports Trio: start-up time of the help.
            from triomq.client.core.servers import namesrv_addresses

            namesrv_addresses(namesrv)  # raises SettingsError for a text that is no address
        changes["namesrv"] = namesrv
    for key in ("tls", "credentials"):
        if (text := options.maybe_text(key)) is not None:
            changes[key] = _absolute(text) if text else ""
    if (access_key := options.maybe_text("access-key")) is not None:
        changes["access_key"] = access_key
        changes["secret_key"] = _secret_key() if access_key else ""
    given: Document = {key: text or None for key, text in changes.items()}
    new = attrs.evolve(old, **given)
    if new.credentials and new.access_key:
        raise UsageError(
            f"context {name} has a file of credentials and an access key: give --credentials '' or"
            " --access-key '' to remove one"
        )
    first = not file.contexts
    current = name if first else file.current
    write_contexts(path, ContextFile({**file.contexts, name: new}, current))
    line = f"context {name} is stored in {path}" + (", and is the current one" if first else "")
    return Result(document=document_of(new), blocks=[line])


def _absolute(path: str) -> str:
    """Return a path that is valid in every folder; the file need not exist."""
    return os.path.abspath(os.path.expanduser(path))


def _secret_key() -> str:
    """Read the secret key from the terminal, without echo, or the first line of stdin.

    Raises: SettingsError if it is empty or too long.
    """
    if sys.stdin.isatty():
        secret = getpass.getpass("Secret key: ")
    else:
        secret = sys.stdin.readline(SECRET_LENGTH_MAX + 2)
    secret = secret.strip()
    if not 0 < len(secret) <= SECRET_LENGTH_MAX:
        raise SettingsError(
            f"the secret key on stdin must have 1 to {SECRET_LENGTH_MAX} characters: pipe it in,"
            " for instance from a file"
        )
    return secret


async def context_use(options: Values) -> Result:
    path, name = contexts_path(), options.text("name")
    file = read_contexts(path)
    file.named(name)
    write_contexts(path, attrs.evolve(file, current=name))
    return Result(document={"current": name}, blocks=[f"the current context is {name}"])


async def context_delete(options: Values) -> Result:
    path, name = contexts_path(), options.text("name")
    file = read_contexts(path)
    file.named(name)
    left = {other: context for other, context in file.contexts.items() if other != name}
    current = None if file.current == name else file.current
    write_contexts(path, ContextFile(left, current))
    return Result(document={"deleted": name}, blocks=[f"context {name} is deleted"])


NAME = Option("NAME", "name of the context", context_name, required=True)
COMMANDS = (
    AdminCommand("contextList", local=context_list, own_access=True),
    AdminCommand("contextShow", local=context_show, own_access=True).with_options(
        Option("NAME", "name of the context (default: the one that commands use)", context_name)
    ),
    AdminCommand("contextSet", local=context_set, own_access=True, effect=Effect.ACTS).with_options(
        NAME,
        Option(
            "--access-key KEY",
            "sign requests with this key; its secret key is read from stdin, on a terminal"
            " without echo",
            str,
        ),
    ),
    AdminCommand("contextUse", local=context_use, own_access=True, effect=Effect.ACTS).with_options(
        NAME
    ),
    AdminCommand(
        "contextDelete",
        local=context_delete,
        own_access=True,
        effect=Effect.DESTROYS,
        loss="the context with its keys",
    ).with_options(NAME),
)
