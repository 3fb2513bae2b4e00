"""How servers are accessed: TLS, signatures, proxies, form of headers; for every client.

Environment variables stand in for missing values: TRIOMQ_TLS names a ``tls.properties`` file,
TRIOMQ_CREDENTIALS a file with the lines ``accessKey: ...`` and ``secretKey: ...`` (Java's
``conf/tools.yml``), ROCKETMQ_SERIALIZE_TYPE the form of headers, ``JSON`` or ``ROCKETMQ``, as for
Java's clients, and TRIOMQ_SOCKS_PROXIES holds what Java's clients call ``socksProxyConfig``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.client.rpc_hooks import RpcHook, Serialisation, Signing
from triomq.remoting.core.config_error import ConfigError
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls, read_properties

CREDENTIALS_FILE_VARIABLE = "TRIOMQ_CREDENTIALS"
SOCKS_VARIABLE = "TRIOMQ_SOCKS_PROXIES"
SERIALIZE_VARIABLE = "ROCKETMQ_SERIALIZE_TYPE"


@attrs.frozen(kw_only=True)
class Access:
    """How one client accesses servers; ``serialize`` is the form of headers (None: JSON)."""

    tls: Tls | None = None
    credentials: Credentials | None = None
    serialize: SerializeType | None = None
    socks: SocksProxies = attrs.field(factory=SocksProxies)

    def or_environment(self, environment: Mapping[str, str] | None = None) -> Access:
        """Return the same, with missing values taken from the environment.

        Raises: ConfigError for an unusable file.
        """
        environment = os.environ if environment is None else environment
        name = environment.get(CREDENTIALS_FILE_VARIABLE, "").strip()
        return Access(
            tls=self.tls or Tls.from_environment(environment),
            credentials=self.credentials or (read_credentials(Path(name)) if name else None),
            serialize=_form(environment.get(SERIALIZE_VARIABLE, ""))
            if self.serialize is None
            else self.serialize,
            socks=self.socks
            if self.socks.ranges
            else SocksProxies.parse(environment.get(SOCKS_VARIABLE, "")),
        )

    def check(self) -> None:
        """Load the files of TLS now. Raises: ConfigError with cause and fix."""
        if self.tls is not None:
            from triomq.remoting.tls.contexts import current_client_context  # ssl, only with TLS

            current_client_context(self.tls)

    @property
    def hooks(self) -> tuple[RpcHook, ...]:
        """The hooks that a connection needs."""
        hooks: list[RpcHook] = []
        if self.serialize:  # JSON is the default of commands
            hooks.append(Serialisation(self.serialize))
        if self.credentials is not None:
            hooks.append(Signing(self.credentials))
        return tuple(hooks)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of a ``BlockingConnection`` or a ``ConnectorConfig``."""
        return {"tls": self.tls, "socks": self.socks, "hooks": self.hooks}


def _form(text: str) -> SerializeType | None:
    """Return the form that the environment names, in any case; None for an empty text."""
    name = text.strip().upper()
    if name and name not in SerializeType.__members__:
        raise ConfigError(
            SERIALIZE_VARIABLE,
            f"{text!r} is not a form of headers",
            "set it to JSON or ROCKETMQ, or unset it",
        )
    return SerializeType[name] if name else None


def read_credentials(path: Path) -> Credentials:
    """Read the lines ``accessKey``, ``secretKey`` and optionally ``securityToken`` of a file.

    A colon or an equals sign separates each from its value.

    Raises: ConfigError.
    """
    path = path.expanduser()
    entries = read_properties(path, "name a file with the lines accessKey and secretKey")
    texts = {key: value.strip().strip("'\"") for key, value in entries.items()}
    try:
        return Credentials(
            access_key=texts.get("accessKey", ""),
            secret_key=texts.get("secretKey", ""),
            security_token=texts.get("securityToken") or None,
        )
    except ValueError as error:
        raise ConfigError(
            str(path),
            str(error).partition(":")[0],
            "write the lines accessKey: NAME and secretKey: SECRET",
        ) from None
