"""Resources, actions on them, and patterns of resources in rules. SANS-IO.

Source: auth/…/authorization/model/Resource.java, common/action/Action.java,
common/resource/ResourceType.java, ResourcePattern.java.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import attrs

from triomq.remoting.protocol.names import RETRY_PREFIX


class ResourceType(enum.Enum):
    """Types of resources, with their numbers in Java's stores."""

    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5

    __hash__ = object.__hash__  # that of Enum is written in Python

    @property
    def text(self) -> str:
        """The type as rules and refusals write it."""
        return self.name.capitalize()


class Action(enum.Enum):
    """Actions, with their numbers in Java's stores. ALL in a rule stands for each of them."""

    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9

    __hash__ = object.__hash__

    @property
    def text(self) -> str:
        """The action as rules write it."""
        return self.name.capitalize()


class Pattern(enum.Enum):
    """How a rule names resources, with Java's numbers: all of a type, one, or by a prefix."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class Resource(NamedTuple):
    """One topic, consumer group or cluster."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.text}:{self.name}"


@attrs.frozen
class ResourcePattern:
    """The resources of a rule: ``Topic:orders``, ``Topic:ord*``, ``Topic:*`` or ``*``."""

    type: ResourceType
    pattern: Pattern
    name: str = ""
    """The whole name, or the prefix of names."""

    @classmethod
    def parse(cls, text: str) -> ResourcePattern:
        """Read the text form, the type in any case.

        A name that ends with ``*`` is a prefix, up to its first ``*``; all others are whole names.

        Raises: ValueError.
        """
        if text == "*":
            return cls(ResourceType.ANY, Pattern.ANY)
        kind, colon, name = text.partition(":")
        found = ResourceType.__members__.get(kind.upper())
        if not colon or found is None or found is ResourceType.ANY:
            raise ValueError(
                f"{text!r} is no resource: write Topic:NAME, Group:NAME or Cluster:NAME, a prefix"
                " as Topic:NAM*, all of a type as Topic:*, or everything as *"
            )
        if not name.endswith("*"):
            return cls(found, Pattern.LITERAL, name)
        prefix = name.partition("*")[0]
        return cls(found, Pattern.PREFIXED, prefix) if prefix else cls(found, Pattern.ANY)

    def __str__(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.type.text}:{self.name}{star}"

    def matches(self, resource: Resource) -> bool:
        """Return whether *resource* is one of these."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not resource.type:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == resource.name
        return self.pattern is Pattern.ANY or resource.name.startswith(self.name)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The place among patterns that match one resource; the smallest decides."""
        return (
            self.type is ResourceType.ANY,
            (Pattern.LITERAL, Pattern.PREFIXED, Pattern.ANY).index(self.pattern),
            -len(self.name),
        )


class Need(NamedTuple):
    """One resource that a request uses, and the actions of which one is enough."""

    resource: Resource
    actions: tuple[Action, ...]


def topic_need(name: str, *actions: Action) -> Need:
    """Return what the use of a topic needs.

    A retry topic is a part of its consumer group: to send to it is an act of that group. Dead
    letters are a topic of their own.
    """
    if not name.startswith(RETRY_PREFIX):
        return Need(Resource(ResourceType.TOPIC, name), actions)
    group = name[len(RETRY_PREFIX) :]
    of_group = dict.fromkeys(Action.SUB if each is Action.PUB else each for each in actions)
    return group_need(group, *of_group)


def group_need(name: str, *actions: Action) -> Need:
    """Return what the use of a consumer group needs."""
    return Need(Resource(ResourceType.GROUP, name), actions)


def cluster_need(name: str, *actions: Action) -> Need:
    """Return what a request about a whole cluster needs."""
    return Need(Resource(ResourceType.CLUSTER, name), actions)
