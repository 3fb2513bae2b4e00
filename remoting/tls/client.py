"""What a client says about TLS: one value for SDK, mqadmin, Spark and the broker's own connections; and Java's ``tls.properties``.

Where Java trusts everybody unless told otherwise, this client verifies the server's certificate and its host name unless told
otherwise.  Source of the names: remoting/…/netty/TlsSystemConfig.java.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.remoting.properties import PropertiesError, decode_text, parse_properties
from triomq.remoting.settings import ConfigError

TLS_FILE_VARIABLE = "TRIOMQ_TLS"
"""environment variable that names a tls.properties file; whoever reads it uses TLS for every connection"""
DEFAULT_TLS_FILE = Path("/etc/rocketmq/tls.properties")


def _path(value: Path | str | None) -> Path | None:
    return None if value is None else Path(value).expanduser()


@attrs.frozen(kw_only=True)
class Tls:
    """How a client secures its connections. All files are PEM; without `ca_file` the system's certificate authorities count.

    `certificate_file` and `key_file` are for servers that ask for a client certificate.  `check_host_name=False` accepts a
    certificate of the right authority for any host, as Java does; `verify=False` accepts everything, which stops no attacker.
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
        """Read the client's part of a ``tls.properties`` file; paths in it are relative to it. ConfigError if it cannot be used."""
        return client_tls(read_tls_file(Path(path).expanduser()), str(path))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Tls | None:
        """What the file named by the variable TRIOMQ_TLS says; None without the variable."""
        name = (os.environ if environment is None else environment).get(TLS_FILE_VARIABLE, "").strip()
        return cls.from_file(name) if name else None


def read_tls_file(path: Path) -> dict[str, str]:
    """All entries of a properties file; relative paths become absolute ones. ConfigError if it cannot be read."""
    try:
        entries = parse_properties(decode_text(path.read_bytes()))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(str(path), f"cannot be read ({reason})", "name an existing tls.properties file") from None
    except PropertiesError as error:
        raise ConfigError(f"{path}:{error.line}", error.reason, "correct the line") from None
    folder = path.resolve().parent
    return {
        key: str(folder / Path(value.strip()).expanduser()) if key.endswith("Path") and value.strip() else value.strip()
        for key, value in entries.items()
    }


def client_tls(entries: Mapping[str, str], where: str) -> Tls:
    """The client's part of ``tls.*`` entries. What is not said is safe: verify, and check the host name."""
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
    """A true or false entry; ConfigError for anything else."""
    text = entries.get(key, "").strip().lower()
    if not text:
        return default
    if text not in ("true", "false"):
        raise ConfigError(where, f"{key}={entries[key]}: neither true nor false", "write one of the two")
    return text == "true"
