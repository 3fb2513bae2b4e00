"""Read the files of the options --tls and --credentials, and the keys of a context."""

from __future__ import annotations

from pathlib import Path

from triomq.client.admin.arguments import Values
from triomq.client.admin.contexts import Context
from triomq.client.core.errors import SettingsError
from triomq.remoting.client.access import read_credentials
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls


def given_access(values: Values) -> tuple[Tls | None, Credentials | None]:
    """Read the files that the options name; None for an option that is not given.

    Raises: SettingsError.
    """
    tls, credentials = values.maybe_text("tls"), values.maybe_text("credentials")
    try:
        return (
            Tls.from_file(tls) if tls is not None else None,
            _keys_of(values.value("context"))
            if credentials is None
            else read_credentials(Path(credentials)),
        )
    except ConfigError as error:
        raise SettingsError(str(error)) from None


def _keys_of(context: object) -> Credentials | None:
    """Return the keys of a context; a name of one, without keys, has none."""
    if not isinstance(context, Context) or context.access_key is None:
        return None
    return Credentials(access_key=context.access_key, secret_key=context.secret_key or "")
