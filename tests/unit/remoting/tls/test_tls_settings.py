"""TLS settings: the meaning of Java's keys, alone and with a tls.properties file; refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.options import load_broker_config
from triomq.remoting.core.properties_file import Entry, format_properties
from triomq.remoting.core.settings import ConfigError, render
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.security_settings import (
    TLS_KEYS,
    ClientAuth,
    ProxyMode,
    SecuritySettings,
    ServerTls,
    TlsMode,
    resolve,
)


def settings(**values: str) -> SecuritySettings:
    """Settings as a broker reads them; a double underscore stands for a dot."""
    entries = [Entry(name.replace("__", "."), value) for name, value in values.items()]
    return load_broker_config(None, environment={}, definitions=entries).config.security


def file(folder: Path, *lines: str) -> str:
    path = folder / "tls.properties"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_without_settings_connections_are_plain() -> None:
    assert resolve(SecuritySettings()) == resolve(settings())
    security = resolve(settings())
    assert (security.mode, security.server, security.client, security.proxy_protocol) == (
        TlsMode.PERMISSIVE,
        None,
        None,
        ProxyMode.OFF,
    )


def test_java_s_keys_are_known() -> None:
    # remoting/…/netty/TlsSystemConfig.java, and one key of TrioMQ
    sides = {"keyPath", "keyPassword", "certPath", "trustCertPath"}
    java = {f"tls.{side}.{key}" for side in ("server", "client") for key in sides}
    java |= {
        "tls.server.mode",
        "tls.enable",
        "tls.config.file",
        "tls.test.mode.enable",
        "tls.server.need.client.auth",
        "tls.server.authClient",
        "tls.client.authServer",
    }
    assert java | {"tls.client.checkHostName"} == TLS_KEYS.keys()


def test_a_server_from_settings_alone() -> None:
    security = resolve(
        settings(
            tls__server__mode="Enforcing",
            tls__server__certPath="/c.pem",
            tls__server__keyPath="/k.pem",
            tls__server__keyPassword="open sesame",
            tls__server__need__client__auth="require",
            tls__server__authClient="true",
            tls__server__trustCertPath="/ca.pem",
            proxyProtocol="optional",
        )
    )
    assert security.mode is TlsMode.ENFORCING
    assert security.server == ServerTls(
        certificate_file=Path("/c.pem"),
        key_file=Path("/k.pem"),
        key_password="open sesame",
        client_auth=ClientAuth.REQUIRE,
        client_ca_file=Path("/ca.pem"),
    )
    assert security.server.files == (Path("/c.pem"), Path("/k.pem"), Path("/ca.pem"))
    assert security.proxy_protocol is ProxyMode.OPTIONAL


def test_the_file_completes_the_settings_and_yields_to_mode_and_enable(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "tls.server.certPath=c.pem",
        "tls.server.keyPath=/abs/k.pem",
        "tls.server.mode=disabled",
        "tls.enable=false",
        "tls.client.trustCertPath=ca.pem",
    )
    security = resolve(
        settings(
            tls__config__file=path,
            tls__server__certPath=str(tmp_path / "c.pem"),
            tls__server__mode="enforcing",
            tls__enable="true",
        )
    )
    assert security.mode is TlsMode.ENFORCING
    assert security.server is not None
    assert security.server.certificate_file == tmp_path / "c.pem", "relative to the file"
    assert security.server.key_file == Path("/abs/k.pem")
    assert security.client == Tls(ca_file=tmp_path / "ca.pem")


def test_the_file_s_mode_and_enable_are_the_defaults(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "tls.server.mode=DISABLED",
        "tls.server.certPath=c.pem",
        "tls.server.keyPath=k.pem",
        "tls.enable=true",
    )
    security = resolve(settings(tls__config__file=path))
    assert (security.mode, security.server) == (TlsMode.DISABLED, None)
    assert security.client == Tls()


def test_clients_verify_unless_told_otherwise() -> None:
    assert resolve(settings(useTLS="true")).client == Tls()
    assert resolve(settings(tls__enable="true", tls__client__authServer="false")).client == Tls(
        verify=False
    )
    assert resolve(settings(tls__enable="true", tls__client__checkHostName="false")).client == Tls(
        check_host_name=False
    )
    test_mode = resolve(settings(tls__enable="true", tls__test__mode__enable="true"))
    assert test_mode.client == Tls(verify=False)
    assert test_mode.server == ServerTls(), "it makes a certificate for itself"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tls__server__mode": "enforcing"}, "enforcing without a certificate"),
        ({"tls__server__keyPath": "k"}, "belong together"),
        (
            {
                "tls__server__certPath": "c",
                "tls__server__keyPath": "k",
                "tls__server__need__client__auth": "optional",
            },
            "would accept any certificate",
        ),
        ({"tls__enable": "true", "tls__client__certPath": "c"}, "belong together"),
        ({"tls__config__file": "/no/such/file"}, "cannot be read"),
    ],
)
def test_contradictions_are_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        resolve(settings(**values))
    assert caught.value.fix


@pytest.mark.parametrize(
    ("key", "here", "there"),
    [
        ("tls.server.need.client.auth", "require", "none"),
        ("tls.server.authClient", "true", "false"),
        ("tls.client.authServer", "false", "true"),
        ("tls.server.certPath", "/mine.pem", "other.pem"),
        ("tls.server.keyPassword", "open sesame", "another"),
    ],
)
def test_settings_and_file_that_differ_end_the_start(
    tmp_path: Path, key: str, here: str, there: str
) -> None:
    """Without this the file won without a word, so a server that was told to require certificates
    asked for none.
    """
    path = file(tmp_path, f"{key}={there}")
    given = {key.replace(".", "__"): here, "tls__config__file": path}
    with pytest.raises(ConfigError, match=f"{key} contradicts") as caught:
        resolve(settings(**given))
    assert "open sesame" not in str(caught.value)
    file(tmp_path, f"{key}={here.upper() if here == 'require' else here}")
    resolve(settings(**given, tls__server__mode="disabled"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tls.server.mode=sometimes", "write DISABLED or PERMISSIVE or ENFORCING"),
        ("tls.server.need.client.auth=perhaps", "write NONE or OPTIONAL or REQUIRE"),
        ("tls.test.mode.enable=yes", "neither true nor false"),
        ("tls.server.certpath=x", r"unknown key tls\.server\.certpath"),
        ("a=\\u12", "malformed escape"),
    ],
)
def test_mistakes_in_the_file_are_named_with_the_file(
    tmp_path: Path, line: str, words: str
) -> None:
    path = file(tmp_path, line)
    with pytest.raises(ConfigError, match=words) as caught:
        resolve(settings(tls__config__file=path, tls__enable="true"))
    assert path in str(caught.value)


def test_secrets_are_never_printed() -> None:
    config = load_broker_config(
        None,
        environment={},
        definitions=[
            Entry("tls.server.keyPassword", "open sesame"),
            Entry("tls.client.keyPassword", "open sesame"),
            Entry("socksProxyConfig", '{"0.0.0.0/0":{"addr":"a:1","password":"open sesame"}}'),
        ],
    ).config
    assert "open sesame" not in format_properties(render(config))
    assert "open sesame" in format_properties(render(config, secrets=True))


def test_a_client_reads_the_same_file(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "tls.client.trustCertPath=ca.pem",
        "tls.client.certPath=c.pem",
        "tls.client.keyPath=k.pem",
        "tls.client.keyPassword=p",
        "tls.server.keyPath=x",
    )
    tls = Tls.from_file(path)
    assert tls == Tls(
        ca_file=tmp_path / "ca.pem",
        certificate_file=tmp_path / "c.pem",
        key_file=tmp_path / "k.pem",
        key_password="p",
    )
    assert "key_password" not in repr(tls)
    assert Tls.from_environment({"TRIOMQ_TLS": path}) == tls
    assert Tls.from_environment({}) is None
    with pytest.raises(ConfigError, match="belong together"):
        Tls(key_file="k.pem")
