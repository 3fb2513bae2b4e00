"""Contexts: named sets of name servers, TLS and credentials, in a file that only its owner reads.

The file is ``triomq/contexts.json`` below ``$XDG_CONFIG_HOME`` or ``~/.config``::

    {"current": "test", "contexts": {"test": {"namesrvAddr": "ns:9876", "tls": "/tls.properties"}}}

A call takes name servers from the first of: ``--context``, ``-n``, the environment variables
TRIOMQ_CONTEXT and NAMESRV_ADDR, the current context. Only with ``--context`` and TRIOMQ_CONTEXT, or
if the current context names the servers, does it use the context's TLS and keys: they are not for
the servers of another cluster.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from triomq.client.admin.arguments import Values
from triomq.client.admin.errors import ContextNotFound
from triomq.client.core.errors import SettingsError
from triomq.remoting.core.atomic_file import swap_file

CONTEXT_VARIABLE = "TRIOMQ_CONTEXT"
SERVER_VARIABLES = ("NAMESRV_ADDR", "ROCKETMQ_NAMESRV_DOMAIN")
FILE_BYTES_MAX = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


@attrs.frozen(kw_only=True)
class Context:
    """Where a cluster is, and how to access it. ``repr`` shows no secret."""

    name: str
    namesrv: str | None = None
    tls: str | None = None
    """path of a tls.properties file"""
    credentials: str | None = None
    """path of a file with accessKey and secretKey"""
    access_key: str | None = None
    secret_key: str | None = attrs.field(default=None, repr=False)


KEYS: Mapping[str, str] = {
    "namesrvAddr": "namesrv",
    "tls": "tls",
    "credentials": "credentials",
    "accessKey": "access_key",
    "secretKey": "secret_key",
}
"""key in the file → attribute"""


@attrs.frozen
class ContextFile:
    """The contexts of the file; ``current`` is the name of the one that ``context use`` chose."""

    contexts: Mapping[str, Context] = attrs.field(factory=dict)
    current: str | None = None

    def named(self, name: str) -> Context:
        """Return a context. Raises: ContextNotFound."""
        if name not in self.contexts:
            raise ContextNotFound(name, self.contexts)
        return self.contexts[name]


def context_name(text: str) -> str:
    """Read the name of a context."""
    if not _NAME.fullmatch(text.strip()):
        raise ValueError("use letters, digits, dot, dash and underscore, 100 at most")
    return text.strip()


def contexts_path(environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file, by the XDG rules."""
    base = (os.environ if environment is None else environment).get("XDG_CONFIG_HOME", "")
    # The rules say: a path that is not absolute is ignored.
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "triomq" / "contexts.json"


def read_contexts(path: Path) -> ContextFile:
    """Read the file; no file is an empty one.

    Raises: SettingsError if it cannot be read, is not of this form, or others may read it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return ContextFile()
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror or error}; correct its permissions"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(
            f"{path} may have secrets, and other users can read it (mode"
            f" {stat.S_IMODE(mode):04o}): run `chmod 600 {path}`"
        )
    if len(text) > FILE_BYTES_MAX:
        raise SettingsError(f"{path} is larger than {FILE_BYTES_MAX} bytes: delete contexts")
    try:
        return _decoded(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else "a value has another type"
        raise SettingsError(
            f"{path} is not a file of contexts ({reason}): correct or delete it"
        ) from None


def _decoded(document: Any) -> ContextFile:
    contexts = {}
    for name, values in document["contexts"].items():
        context_name(name)
        if unknown := sorted(set(values) - set(KEYS)):
            raise ValueError(f"context {name} has the unknown key {unknown[0]!r}")
        if not all(isinstance(value, str) for value in values.values()):
            raise TypeError
        contexts[name] = Context(name=name, **{KEYS[key]: text for key, text in values.items()})
    current = document.get("current")
    return ContextFile(contexts, current if current in contexts else None)


def write_contexts(path: Path, file: ContextFile) -> None:
    """Replace the file in one step; only its owner may read it.

    Raises: SettingsError.
    """
    document = {
        "current": file.current,
        "contexts": {
            name: {
                key: getattr(context, attribute)
                for key, attribute in KEYS.items()
                if getattr(context, attribute) is not None
            }
            for name, context in sorted(file.contexts.items())
        },
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        swap_file(path, text.encode(), private=True)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror or error}; correct the permissions of its"
            " folder"
        ) from None


def chosen_context(values: Values, environment: Mapping[str, str] | None = None) -> Context | None:
    """Return the context of a call, None if it uses none.

    Raises: ContextNotFound, SettingsError.
    """
    environment = os.environ if environment is None else environment
    name = values.maybe_text("context")
    if name is None and "namesrvAddr" in values:
        return None
    name = name or environment.get(CONTEXT_VARIABLE, "").strip()
    if not name and any(environment.get(variable, "").strip() for variable in SERVER_VARIABLES):
        return None
    file = read_contexts(contexts_path(environment))
    if name:
        return file.named(name)
    return None if file.current is None else file.named(file.current)


def with_context(values: Values, environment: Mapping[str, str] | None = None) -> Values:
    """Return the options of a call, with those that are not given taken from its context.

    Raises: ContextNotFound, SettingsError.
    """
    context = chosen_context(values, environment)
    if context is None:
        return values
    more = {"namesrvAddr": context.namesrv, "tls": context.tls}
    found = {name: value for name, value in more.items() if name not in values}
    if "credentials" not in values:
        found["credentials"] = context.credentials
    return values.replaced(**found, context=context)
