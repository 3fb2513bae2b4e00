"""The answers of several servers, and the parts of one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from triomq.client.admin.errors import NoBrokerAnswered
from triomq.client.core.errors import BrokerError, TrioMQError, from_remoting
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.short_repr import short_names

if TYPE_CHECKING:
    from triomq.remoting.protocol.bodies.schema import JsonBody
    from triomq.remoting.protocol.command import Command

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
B = TypeVar("B", bound="JsonBody")
H = TypeVar("H")


@attrs.frozen
class Answers(Generic[T_co]):
    """The answers of several servers, by the caller's label."""

    values: Mapping[str, T_co] = attrs.field(repr=short_names)
    """of the servers that answered"""
    failures: Mapping[str, TrioMQError] = attrs.field(repr=short_names)
    """of the others"""

    @property
    def asked(self) -> int:
        return len(self.values) + len(self.failures)

    def reasons(self) -> dict[str, str]:
        """Return each failure as a text."""
        return {label: str(error) for label, error in self.failures.items()}

    def some(self) -> Mapping[str, T_co]:
        """Return ``values``.

        Raises: TrioMQError if there are failures only: the common reason, or NoBrokerAnswered.
        """
        if not self.values and self.failures:
            errors = list(self.failures.values())
            if all(
                isinstance(error, BrokerError) and type(error) is type(errors[0])
                for error in errors
            ):
                raise errors[0]  # all refuse for one reason: that reason is the answer
            raise NoBrokerAnswered(self.reasons())
        return self.values


def all_of(answers: Answers[T]) -> Mapping[str, T]:
    """Return the values. Raises: TrioMQError, the first failure if there is one."""
    for error in answers.failures.values():
        raise error
    return answers.values


def problem_lines(answers: Answers[object]) -> list[str]:
    """Return a line for each failure."""
    return [f"{label}: {reason}" for label, reason in answers.reasons().items()]


def read_body(kind: type[B], response: Command) -> B:
    """Decode a body.

    Raises: ProtocolBroken if it is not the body of that answer.
    """
    try:
        return kind.decode(response.body)
    except RemotingError as error:
        raise from_remoting(error) from error


def read_header(kind: type[H], response: Command) -> H:
    """Read the header fields of an answer.

    Raises: ProtocolBroken if a field is missing.
    """
    try:
        return response.header(kind)
    except RemotingError as error:
        raise from_remoting(error) from error
