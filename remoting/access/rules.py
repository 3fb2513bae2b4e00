"""Rules of one user, and which of them decides. SANS-IO.

Source: auth/…/authorization/chain/AclAuthorizationHandler.java, model/Acl.java, Policy.java,
PolicyEntry.java, Environment.java.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable

import attrs

from triomq.remoting.access.resources import Action, Need, ResourcePattern

DECIDED_MAX = 256
"""Decisions that are kept for one user: about 50 KB."""
KEPT_LENGTH_MAX = 255
"""Nothing is kept about longer names: no topic or group has one, and a user may send 512 KiB."""


class PolicyType(enum.Enum):
    """Rules of the type Default count where no rule of the type Custom applies."""

    CUSTOM = 1
    DEFAULT = 2

    @property
    def text(self) -> str:
        return self.name.capitalize()

    @classmethod
    def parse(cls, text: str | None) -> PolicyType:
        """Return the type; Custom for everything that is not Default, as in Java."""
        return cls.DEFAULT if (text or "").upper() == cls.DEFAULT.name else cls.CUSTOM


@attrs.frozen
class Network:
    """Addresses from which a rule counts: one address, or all of a network (``10.0.0.0/8``)."""

    text: str
    network: ipaddress.IPv4Network | ipaddress.IPv6Network = attrs.field(
        init=False,
        eq=False,
        default=attrs.Factory(
            lambda self: ipaddress.ip_network(self.text, strict=False), takes_self=True
        ),
    )

    def has(self, address: str) -> bool:
        """Return whether *address* is one of these; IPv4 in IPv6's form is IPv4."""
        found = ipaddress.ip_address(address.partition("%")[0])
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return (mapped or found) in self.network


@attrs.frozen
class AccessRule:
    """Whether actions on resources are allowed, for requests from these addresses (none: all)."""

    resources: ResourcePattern
    actions: tuple[Action, ...]
    allow: bool
    sources: tuple[Network, ...] = ()
    order: tuple[tuple[bool, int, int], bool] = attrs.field(
        init=False,
        eq=False,
        default=attrs.Factory(lambda self: (self.resources.rank, self.allow), takes_self=True),
    )
    """The smallest of the rules that apply decides."""

    def applies(self, need: Need, address: str) -> bool:
        """Return whether this rule is about *need* when it comes from *address*."""
        return (
            self.resources.matches(need.resource)
            and (Action.ALL in self.actions or any(each in self.actions for each in need.actions))
            and (not self.sources or any(source.has(address) for source in self.sources))
        )

    def __str__(self) -> str:
        """Return the rule in words: ``the rule allows Pub on Topic:orders from 10.0.0.0/8``."""
        words = ",".join(action.text for action in self.actions)
        places = ",".join(place.text for place in self.sources)
        verb = "allows" if self.allow else "denies"
        where = f" from {places}" if places else ""
        return f"the rule {verb} {words} on {self.resources}{where}"


@attrs.frozen
class AccessDecision:
    """Whether a need is met, and the rule that decides; None without one, and for super users."""

    allowed: bool
    rule: AccessRule | None = None


@attrs.frozen
class AccessRules:
    """All rules of one user."""

    custom: tuple[AccessRule, ...] = ()
    default: tuple[AccessRule, ...] = ()
    _decided: dict[tuple[Need, str], AccessDecision] = attrs.field(
        factory=dict, init=False, eq=False, repr=False
    )
    """What was asked last: a user does the same again and again."""

    def decide(self, need: Need, address: str) -> AccessDecision:
        """Return whether the rules allow *need*: without a rule that applies they do not.

        Of the rules that apply the most exact one decides; Deny does among equally exact ones.
        """
        key = need, address
        decision = self._decided.get(key)
        if decision is None:
            if len(self._decided) >= DECIDED_MAX:
                self._decided.clear()  # names of topics are the clients' to choose
            rule = _first(self.custom, need, address) or _first(self.default, need, address)
            decision = AccessDecision(rule is not None and rule.allow, rule)
            if len(need.resource.name) <= KEPT_LENGTH_MAX:
                self._decided[key] = decision
        return decision

    def of(self, kind: PolicyType) -> tuple[AccessRule, ...]:
        """Return the rules of one type."""
        return self.custom if kind is PolicyType.CUSTOM else self.default

    def with_rules(self, kind: PolicyType, rules: Iterable[AccessRule]) -> AccessRules:
        """Return the same with other rules of one type."""
        changed = tuple(rules)
        if kind is PolicyType.CUSTOM:
            return attrs.evolve(self, custom=changed)
        return attrs.evolve(self, default=changed)

    def merged(self, kind: PolicyType, rules: Iterable[AccessRule]) -> AccessRules:
        """Return the same with added rules, each in place of the first one of its resources.

        The first rules of a type are all kept, also those of the same resources.
        """
        known = list(self.of(kind))
        if not known:
            return self.with_rules(kind, rules)
        for rule in rules:
            places = [at for at, old in enumerate(known) if old.resources == rule.resources]
            if places:
                known[places[0]] = rule
            else:
                known.append(rule)
        return self.with_rules(kind, known)

    def __bool__(self) -> bool:
        return bool(self.custom or self.default)


def _first(rules: Iterable[AccessRule], need: Need, address: str) -> AccessRule | None:
    found = None
    for rule in rules:
        if rule.applies(need, address) and (found is None or rule.order < found.order):
            found = rule
    return found
