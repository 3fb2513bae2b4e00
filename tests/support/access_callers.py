"""A broker with access control, and requests to it as this or that user."""

from __future__ import annotations

from typing import Any

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.bodies import auth
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.auth import AclHeader, DeleteAclHeader, UserHeader
from triomq.remoting.protocol.signing import SIGNATURE, Credentials, signed

ROOT = "root", "rootpw123"
PASSWORD = "pw-12345678"
SETTINGS = {
    "grpcServerPort": 0,
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"root","password":"rootpw123"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"innerpw123"}',
}


class Caller:
    """Sends requests as anybody over one connection."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.connection = connection

    def ask(
        self, command: Command, name: str | None, password: str = PASSWORD, *, sign: bool = True
    ) -> Command:
        sent = Command(command.code, body=command.body, ext=dict(command.ext or {}))
        if name is not None:
            credentials = Credentials(access_key=name, secret_key=password)
            sent.ext = signed(sent.ext, bytes(sent.body), credentials)
            if not sign:
                del sent.ext[SIGNATURE]
        return self.connection.invoke(sent, timeout=20)

    def ask_root(self, code: int, header: Any, body: bytes = b"") -> Command:
        return self.ask(request(code, header, body), *ROOT)

    def create_user(self, name: str, password: str = PASSWORD) -> None:
        body = auth.User(password=password).encode()
        made = self.ask_root(Code.AUTH_CREATE_USER, UserHeader(name), body)
        assert made.code == 0, made.remark

    def grant(self, name: str, needs: list[Any], source: str | None) -> None:
        """Let a user do just what is needed: the first action of each need."""
        self.ask_root(Code.AUTH_DELETE_ACL, DeleteAclHeader(f"User:{name}"))
        if not needs:
            return
        entries = [
            auth.PolicyEntry(
                resource=resource,
                actions=actions[:1],
                source_ips=None if source is None else [source],
                decision="Allow",
            )
            for resource, actions in needs
        ]
        body = auth.Acl(policies=[auth.Policy(entries=entries)]).encode()
        made = self.ask_root(Code.AUTH_CREATE_ACL, AclHeader(f"User:{name}"), body)
        assert made.code == 0, made.remark
