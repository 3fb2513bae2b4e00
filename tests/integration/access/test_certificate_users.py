"""``tlsSubjectIsUser``: the common name of a verified client certificate is the user."""

from __future__ import annotations

from pathlib import Path

import pytest
import tls_files
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from access_requests import access_request
from brokers import running_broker

from triomq.broker.options import load_broker_config
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.bodies import auth
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.auth import UserHeader
from triomq.remoting.tls.client import Tls


def tls_settings(files: tls_files.Files) -> dict[str, object]:
    return {
        **SETTINGS,
        "tlsSubjectIsUser": True,
        "tls.server.certPath": files.certificate,
        "tls.server.keyPath": files.key,
        "tls.server.need.client.auth": "optional",
        "tls.server.authClient": True,
        "tls.server.trustCertPath": files.ca,
    }


def identity(folder: Path, server: tls_files.Files, name: str) -> Tls:
    mine = tls_files.write(folder / name, name, server=False)
    return Tls(ca_file=server.ca, certificate_file=mine.certificate, key_file=mine.key)


async def test_a_certificate_names_the_user_of_unsigned_requests(tmp_path: Path) -> None:
    files = tls_files.write(tmp_path / "server")
    clients = {
        name: identity(tmp_path, files, name) for name in ("shop", "ghost", "bob", "no-rights")
    }
    asked = access_request(Code.GET_MAX_OFFSET, "")

    def remark(
        address: str,
        tls: Tls | None,
        command: Command = asked,
        name: str | None = None,
        password: str = PASSWORD,
    ) -> str:
        with BlockingConnection(address, tls=tls) as connection:
            return Caller(connection).ask(command, name, password).remark or ""

    def work(address: str) -> None:
        with BlockingConnection(address) as connection:
            caller = Caller(connection)
            for name in ("shop", "bob", "no-rights"):
                caller.create_user(name)
            disabled = auth.User(user_status="disable").encode()
            caller.ask_root(Code.AUTH_UPDATE_USER, UserHeader("bob"), disabled)
            caller.grant("shop", [["Topic:TA", ["Get"]]], None)
        ours = remark(address, clients["shop"])
        assert "no permission" not in ours
        assert "username" not in ours
        assert remark(address, clients["ghost"]) == "User:ghost is not found."
        assert remark(address, clients["bob"]) == "User:bob is disabled."
        assert "User:no-rights has no permission" in remark(address, clients["no-rights"])
        other = access_request(Code.GET_BROKER_CONFIG, "")
        assert "User:shop has no permission" in remark(address, clients["shop"], other)
        # Credentials of a request count, not the certificate.
        assert remark(address, clients["shop"], asked, "no-rights", "wrong") == (
            "check signature failed."
        )
        assert "User:no-rights has no" in remark(address, clients["shop"], asked, "no-rights")
        assert "permission" not in remark(address, clients["no-rights"], asked, *ROOT)
        # Without a certificate, with and without TLS, a name is nobody's.
        for tls in (files.client(), None):
            assert remark(address, tls) == "username cannot be null."

    async with running_broker(tmp_path, **tls_settings(files)) as broker:
        await trio.to_thread.run_sync(work, broker.address)


async def test_without_the_setting_a_certificate_is_nobody(tmp_path: Path) -> None:
    files = tls_files.write(tmp_path / "server")
    tls = identity(tmp_path, files, ROOT[0])

    def remark(address: str) -> str:
        with BlockingConnection(address, tls=tls) as connection:
            asked = access_request(Code.GET_BROKER_CONFIG, "")
            return Caller(connection).ask(asked, None).remark or ""

    settings = {**tls_settings(files), "tlsSubjectIsUser": False}
    async with running_broker(tmp_path, **settings) as broker:
        assert await trio.to_thread.run_sync(remark, broker.address) == "username cannot be null."


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    files = tls_files.write(tmp_path / "server")
    foreign = tls_files.write(tmp_path / "x", ROOT[0], server=False, issuer="Another authority")
    tls = Tls(ca_file=files.ca, certificate_file=foreign.certificate, key_file=foreign.key)

    def ask(address: str) -> None:
        with BlockingConnection(address, tls=tls) as connection:
            Caller(connection).ask(access_request(Code.GET_BROKER_CONFIG, ""), None)

    async with running_broker(tmp_path, **tls_settings(files)) as broker:
        with pytest.raises(RemotingError, match=r"certificate|closed"):
            await trio.to_thread.run_sync(ask, broker.address)


@pytest.mark.parametrize(
    "more", [{}, {"authenticationEnabled": "true"}, {"tls.server.need.client.auth": "optional"}]
)
def test_the_setting_needs_verified_certificates(more: dict[str, str]) -> None:
    entries = [Entry(key, value) for key, value in {"tlsSubjectIsUser": "true", **more}.items()]
    with pytest.raises(ConfigError, match="tlsSubjectIsUser=true, and no certificate"):
        load_broker_config(None, environment={}, definitions=entries)
