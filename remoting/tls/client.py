"""How a client uses TLS, and the client's part of Java's ``tls.properties``.

By default this client verifies the server's certificate and host name; Java's trusts every server.

Source: remoting/…/netty/TlsSystemConfig.java (the names).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.remoting.core.config_error import ConfigError
from triomq.remoting.core.open_files import none_left
from triomq.remoting.core.properties_file import PropertiesError, decode_text, parse_properties

TLS_FILE_VARIABLE = "TRIOMQ_TLS"
"""environment variable that names a tls.properties file; a client that reads it uses TLS for every
connection
"""
DEFAULT_TLS_FILE = Path("/etc/rocketmq/tls.properties")


def _path(value: Path | str | None) -> Path | None:
    return None if value is None else Path(value).expanduser()


@attrs.frozen(kw_only=True)
class Tls:
    """How a client secures its connections. All files are PEM.

    Without ``ca_file`` the client trusts the system's certificate authorities. ``certificate_file``
    and ``key_file`` are for servers that request a client certificate. ``check_host_name=False``
    accepts a certificate of a trusted authority for any host, as Java does; ``verify=False``
    accepts every certificate, which stops no attacker.
    """

    ca_file: Path | None = attrs.field(default=None, converter=_path)
    certificate_file: Path | None = attrs.field(default=None, converter=_path)
    key_file: Path | None = attrs.field(default=None, converter=_path)
    key_password: str | None = attrs.field(default=None, repr=False)
    check_host_name: bool = True
    verify: bool = True

    def __attrs_post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigError(
                "tls",
                "a client certificate and its private key belong together",
                "give certificate_file and key_file, or neither",
            )

    @classmethod
    def from_file(cls, path: Path | str) -> Tls:
        """Read the client's part of a ``tls.properties`` file, with paths relative to the file.

        Raises: ConfigError.
        """
        return client_tls(read_tls_file(Path(path).expanduser()), str(path))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Tls | None:
        """Read the file that the variable TRIOMQ_TLS names; None without the variable."""
        name = (
            (os.environ if environment is None else environment).get(TLS_FILE_VARIABLE, "").strip()
        )
        return cls.from_file(name) if name else None


def read_tls_file(path: Path) -> dict[str, str]:
    """Read all entries of a properties file; relative paths become absolute.

    Raises: ConfigError.
    """
    entries = read_properties(path, "name an existing tls.properties file")
    folder = path.resolve().parent
    return {
        key: str(folder / Path(value.strip()).expanduser())
        if key.endswith("Path") and value.strip()
        else value.strip()
        for key, value in entries.items()
    }


def read_properties(path: Path, fix: str) -> dict[str, str]:
    """Read a properties file; *fix* is for a file that cannot be read. Raises: ConfigError."""
    try:
        return parse_properties(decode_text(path.read_bytes()))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(str(path), f"cannot be read ({reason})", fix) from None
    except PropertiesError as error:
        raise ConfigError(f"{path}:{error.line}", error.reason, "correct the line") from None


def read_pem(path: Path) -> bytes:
    """Read a PEM file. Raises: ConfigError, OSError when too many files are open."""
    try:
        return path.read_bytes()
    except OSError as error:
        if none_left(error):
            raise
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            str(path), f"cannot be read ({reason})", "name a PEM file that this user may read"
        ) from None


def client_tls(entries: Mapping[str, str], where: str) -> Tls:
    """Return the client's part of ``tls.*`` entries. Defaults: verify, and check the host name."""
    verify = read_flag(entries, "tls.client.authServer", True, where) and not read_flag(
        entries, "tls.test.mode.enable", False, where
    )
    return Tls(
        ca_file=_path(entries.get("tls.client.trustCertPath") or None),
        certificate_file=_path(entries.get("tls.client.certPath") or None),
        key_file=_path(entries.get("tls.client.keyPath") or None),
        key_password=entries.get("tls.client.keyPassword") or None,
        check_host_name=read_flag(entries, "tls.client.checkHostName", True, where),
        verify=verify,
    )


def read_flag(entries: Mapping[str, str], key: str, default: bool, where: str) -> bool:
    """Return a true or false entry. Raises: ConfigError for any other text."""
    text = entries.get(key, "").strip().lower()
    if not text:
        return default
    if text not in ("true", "false"):
        raise ConfigError(
            where, f"{key}={entries[key]}: neither true nor false", "write one of the two"
        )
    return text == "true"
