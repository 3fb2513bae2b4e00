"""Which nodes vote and which only follow, and the changes that are safe one at a time.

Source: Ongaro, "Consensus: Bridging Theory and Practice" (2014), section 4.1: the majorities before
and after a change of one voter overlap, so no two leaders can be elected in one term.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

NO_ADDRESSES: Mapping[str, str] = MappingProxyType({})


class ConfigurationChange(enum.Enum):
    """What may happen to one node."""

    ADD_LEARNER = "add learner"
    """The node follows the log and does not vote."""
    PROMOTE = "promote"
    """A learner that has caught up becomes a voter."""
    REMOVE = "remove"


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Ids of nodes, sorted.

    ``addresses``: id -> where it listens, as the caller's transport writes it. The first
    configuration of a group has none: each node then knows them from its own settings.
    """

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    addresses: dict[str, str] = {}

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def members(self) -> tuple[str, ...]:
        return self.voters + self.learners

    def changed(
        self, change: ConfigurationChange, node: str, addresses: Mapping[str, str] = NO_ADDRESSES
    ) -> Configuration | None:
        """Return the configuration after a change, None if the change makes no sense here.

        ``addresses``: of members whose addresses this configuration does not have yet.
        """
        voters, learners = set(self.voters), set(self.learners)
        if change is ConfigurationChange.ADD_LEARNER:
            if node in voters or node in learners or not node:
                return None
            learners.add(node)
        elif change is ConfigurationChange.PROMOTE:
            if node not in learners:
                return None
            learners.remove(node)
            voters.add(node)
        else:
            if node not in voters | learners or voters == {node}:
                return None
            voters.discard(node)
            learners.discard(node)
        known = {**addresses, **self.addresses}
        return Configuration(
            tuple(sorted(voters)),
            tuple(sorted(learners)),
            {one: known[one] for one in sorted(voters | learners) if one in known},
        )

    def quorum_value(self, values: Mapping[str, int]) -> int:
        """Return the largest value that a majority of voters has reached; a missing one is -1."""
        reached = sorted((values.get(voter, -1) for voter in self.voters), reverse=True)
        return reached[self.majority - 1]


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the data of the log entry that makes this configuration valid."""
    return msgspec.json.encode(configuration)


def decode_configuration(data: bytes) -> Configuration:
    """Return the configuration of a log entry. Raises: msgspec.ValidationError."""
    return msgspec.json.decode(data, type=Configuration)
