"""Hooks of a client, which see every request before it is encoded, and every answer."""

from typing import Protocol

import attrs

from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.signing import Credentials, signed


class RpcHook(Protocol):
    """A hook. Hooks are called in order and must not block; an exception ends the call."""

    def before_request(self, address: str, command: Command) -> None:
        """Change the fields of a request before it is sent or repeated."""

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """See the answer to a request; not called for one-way and unanswered requests."""


@attrs.frozen
class Serialisation:
    """Sets the form of request headers; codes that do not fit the form (POP) are sent as JSON."""

    form: SerializeType

    def before_request(self, address: str, command: Command) -> None:
        command.serialize = self.form

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Do nothing: an answer names its own form."""


@attrs.frozen
class Signing:
    """Signs requests with an access key (Java's AclClientRPCHook).

    Must be the last hook: the signature covers the fields that other hooks add.
    """

    credentials: Credentials

    def before_request(self, address: str, command: Command) -> None:
        command.ext = signed(
            command.ext, command.body, self.credentials, binary=bool(command.serialize)
        )

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Do nothing: answers are not signed."""
