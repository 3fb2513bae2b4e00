"""How servers are approached: with TLS or not, with signed requests or not, with JSON or binary headers. One value for SDK, mqadmin, Spark and scripts.

Where the caller says nothing, environment variables do: TRIOMQ_TLS names a ``tls.properties`` file, TRIOMQ_CREDENTIALS a file with
the lines ``accessKey: ...`` and ``secretKey: ...`` (Java's ``conf/tools.yml``), and ROCKETMQ_SERIALIZE_TYPE, as for Java's clients, the
form of headers, ``JSON`` or ``ROCKETMQ``. TRIOMQ_SOCKS_PROXIES holds what Java's clients call ``socksProxyConfig``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from triomq.remoting.client.hooks import RpcHook, Serialisation, Signing
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.properties import PropertiesError, decode_text, parse_properties
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls

CREDENTIALS_FILE_VARIABLE = "TRIOMQ_CREDENTIALS"
SOCKS_VARIABLE = "TRIOMQ_SOCKS_PROXIES"
SERIALIZE_VARIABLE = "ROCKETMQ_SERIALIZE_TYPE"


@attrs.frozen(kw_only=True)
class Access:
    """`tls` and `credentials`; None where there is none. `serialize`: the form of headers; None is JSON. `socks`: the proxies that lead to servers."""

    tls: Tls | None = None
    credentials: Credentials | None = None
    serialize: SerializeType | None = None
    socks: SocksProxies = attrs.field(factory=SocksProxies)

    def or_environment(self, environment: Mapping[str, str] | None = None) -> Access:
        """The same, with what the environment names in place of what is missing. Raises ConfigError for an unusable file."""
        environment = os.environ if environment is None else environment
        name = environment.get(CREDENTIALS_FILE_VARIABLE, "").strip()
        return Access(
            tls=self.tls or Tls.from_environment(environment),
            credentials=self.credentials or (read_credentials(Path(name)) if name else None),
            serialize=_form(environment.get(SERIALIZE_VARIABLE, "")) if self.serialize is None else self.serialize,
            socks=self.socks if self.socks.ranges else SocksProxies.parse(environment.get(SOCKS_VARIABLE, "")),
        )

    def check(self) -> None:
        """Load the files of TLS now. Raises ConfigError with cause and fix."""
        if self.tls is not None:
            from triomq.remoting.tls.contexts import current_client_context  # ssl, only with TLS

            current_client_context(self.tls)

    @property
    def hooks(self) -> tuple[RpcHook, ...]:
        """The RPC hooks that a connection needs for this."""
        hooks: list[RpcHook] = []
        if self.serialize:  # JSON is what commands have anyway
            hooks.append(Serialisation(self.serialize))
        if self.credentials is not None:
            hooks.append(Signing(self.credentials))
        return tuple(hooks)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of a `BlockingConnection` or a `ConnectorConfig`; none for plain, unsigned connections."""
        options: dict[str, Any] = {}
        if self.tls is not None:
            options["tls"] = self.tls
        if self.socks.ranges:
            options["socks"] = self.socks
        if hooks := self.hooks:
            options["hooks"] = hooks
        return options


def _form(text: str) -> SerializeType | None:
    """The form that the environment names, whatever its case; None for nothing."""
    name = text.strip().upper()
    if name and name not in SerializeType.__members__:
        raise ConfigError(
            SERIALIZE_VARIABLE, f"{text!r} is no form of headers", "set it to JSON or ROCKETMQ, or unset it"
        )
    return SerializeType[name] if name else None


def read_credentials(path: Path) -> Credentials:
    """Read a file with `accessKey`, `secretKey` and perhaps `securityToken`, one a line, after a colon or an equals sign."""
    path = path.expanduser()
    try:
        entries = parse_properties(decode_text(path.read_bytes()))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            str(path), f"cannot be read ({reason})", "name a file with the lines accessKey and secretKey"
        ) from None
    except PropertiesError as error:
        raise ConfigError(f"{path}:{error.line}", error.reason, "correct the line") from None
    texts = {key: value.strip().strip("'\"") for key, value in entries.items()}
    try:
        return Credentials(
            access_key=texts.get("accessKey", ""),
            secret_key=texts.get("secretKey", ""),
            security_token=texts.get("securityToken") or None,
        )
    except ValueError as error:
        raise ConfigError(
            str(path), str(error).partition(":")[0], "write the lines accessKey: NAME and secretKey: SECRET"
        ) from None
