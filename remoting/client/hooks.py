"""RPC hooks of a client: see every request before it is encoded, and every answer. The first of them signs requests."""

from typing import Protocol

import attrs

from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.signing import Credentials, signed


class RpcHook(Protocol):
    """Called in the order in which hooks were given; an exception ends the call with it. Must not wait."""

    def before_request(self, address: str, command: Command) -> None:
        """A request is about to be sent (again, if it is repeated); change its fields in place."""

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Its answer has come. Not called for one-way requests, nor when there is no answer."""


@attrs.frozen
class Serialisation:
    """Writes the headers of requests in one form; codes that the form cannot carry (POP) go as JSON all the same."""

    form: SerializeType

    def before_request(self, address: str, command: Command) -> None:
        command.serialize = self.form

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """An answer says itself in which form it is."""


@attrs.frozen
class Signing:
    """Signs requests with an access key (Java's AclClientRPCHook). Give it last: a signature covers what earlier hooks add."""

    credentials: Credentials

    def before_request(self, address: str, command: Command) -> None:
        command.ext = signed(command.ext, command.body, self.credentials, binary=bool(command.serialize))

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Answers are not signed."""
