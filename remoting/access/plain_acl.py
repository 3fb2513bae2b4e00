"""ACL 1.0 of RocketMQ 4.4 to 5.2: accounts of ``plain_acl.yml`` as users and rules. SANS-IO.

There is one decision (``control.py``), so an account becomes a user, and its permissions become
rules of that user:

==================  ==============================================================================
in the file         here
==================  ==============================================================================
admin: true         a super user
topicPerms T=PUB    Custom: Allow Pub on Topic:T; a listed topic or group is decided by its own
                    entry, so what the entry does not give is denied
T=SUB, groupPerms   Custom: Allow Sub and Get: a consumer asks for the offsets of its topic
DENY                Custom: Deny All
default…Perm        Default: the same on Topic:* or Group:*; DENY and nothing give no rule
(every account)     Custom: Allow Pub on the topic of traces
white addresses     ``AccessUser.trusted`` and ``UserTable.trusted``: neither signature nor rights
==================  ==============================================================================

What ACL 1.0 does not check at all, so that any account may do it, needs these rights here, or an
administrator: see docs/security.md.

Source: acl/…/plain/PlainPermissionManager.java, common/Permission.java (5.2.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from triomq.remoting.access.address_patterns import AddressPatterns
from triomq.remoting.access.resources import Action, Pattern, ResourcePattern, ResourceType
from triomq.remoting.access.rules import AccessRule, AccessRules
from triomq.remoting.access.users import AccessUser, UserTable
from triomq.remoting.access.wording import PLAIN_WORDING
from triomq.remoting.protocol.names import RETRY_PREFIX, TRACE_TOPIC

LONGER_THAN = 6
"""Characters: keys of accounts are longer."""
_TRUE, _FALSE = "true", ("false", "")
_PERMISSIONS: Mapping[str, frozenset[Action]] = {
    "DENY": frozenset(),
    "PUB": frozenset({Action.PUB}),
    "SUB": frozenset({Action.SUB}),
    "PUB|SUB": frozenset({Action.PUB, Action.SUB}),
    "SUB|PUB": frozenset({Action.PUB, Action.SUB}),
}


@attrs.frozen(kw_only=True)
class PlainAccount:
    """An account of a file. ``topics`` and ``groups``: what a name permits."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    admin: bool = False
    white_address: str = ""
    default_topic: frozenset[Action] = frozenset()
    default_group: frozenset[Action] = frozenset()
    topics: Mapping[str, frozenset[Action]] = attrs.field(factory=dict)
    groups: Mapping[str, frozenset[Action]] = attrs.field(factory=dict)
    document: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    """The entry as requests show it."""

    @classmethod
    def read(cls, document: Mapping[str, object]) -> PlainAccount:
        """Read an entry of ``accounts``, all scalars as text. Raises: ValueError."""
        key, secret = _text(document, "accessKey"), _text(document, "secretKey")
        if len(key) <= LONGER_THAN or len(secret) <= LONGER_THAN:
            raise ValueError(
                f"accessKey and secretKey of the account {key!r} must each be longer than"
                f" {LONGER_THAN} characters"
            )
        topics = dict(_entries(document, "topicPerms"))
        groups = dict(_entries(document, "groupPerms"))
        for topic in [each for each in topics if each.startswith(RETRY_PREFIX)]:
            groups.setdefault(topic.removeprefix(RETRY_PREFIX), topics.pop(topic))
        admin = _text(document, "admin").lower()
        if admin != _TRUE and admin not in _FALSE:
            raise ValueError(f"admin of the account {key} is {admin!r}, neither true nor false")
        white = _text(document, "whiteRemoteAddress")
        AddressPatterns.parse([white])
        return cls(
            access_key=key,
            secret_key=secret,
            admin=admin == _TRUE,
            white_address=white,
            default_topic=_permission(_text(document, "defaultTopicPerm") or "DENY"),
            default_group=_permission(_text(document, "defaultGroupPerm") or "DENY"),
            topics=topics,
            groups=groups,
            document={
                **{name: value for name, value in document.items() if value},
                "admin": admin == _TRUE,
            },
        )

    def user(self) -> AccessUser:
        """Return the account as a user."""
        trusted = AddressPatterns.parse([self.white_address])
        return AccessUser(self.access_key, self.secret_key, self.admin, trusted=trusted or None)

    def rules(self) -> AccessRules:
        """Return what the account may do as rules."""
        topics = {**self.topics}
        topics[TRACE_TOPIC] = topics.get(TRACE_TOPIC, self.default_topic) | {Action.PUB}
        custom = [*_listed(ResourceType.TOPIC, topics), *_listed(ResourceType.GROUP, self.groups)]
        default = [
            rule
            for kind, allowed in (
                (ResourceType.TOPIC, self.default_topic),
                (ResourceType.GROUP, self.default_group),
            )
            if (rule := _allowing(ResourcePattern(kind, Pattern.ANY), allowed))
        ]
        return AccessRules(tuple(custom), tuple(default))


@attrs.frozen
class PlainAcl:
    """What one or more files say. ``white_addresses``: from where nothing is checked."""

    accounts: Sequence[PlainAccount] = ()
    white_addresses: Sequence[str] = ()

    @classmethod
    def read(cls, documents: Iterable[object]) -> PlainAcl:
        """Read files; the first account of an access key counts. Raises: ValueError."""
        accounts: dict[str, PlainAccount] = {}
        white: list[str] = []
        for document in documents:
            if document is None or document == "":
                continue
            if not isinstance(document, Mapping):
                raise ValueError("the file is not a map with the keys accounts and so on")
            for entry in _list(document, "accounts"):
                if not isinstance(entry, Mapping):
                    raise ValueError("an entry of accounts is not a map")
                account = PlainAccount.read(entry)
                accounts.setdefault(account.access_key, account)
            addresses = [_word(each) for each in _list(document, "globalWhiteRemoteAddresses")]
            AddressPatterns.parse(addresses)
            white += addresses
        return cls(tuple(accounts.values()), tuple(white))

    def table(self) -> UserTable:
        """Return users and rules, with the texts of ACL 1.0."""
        table = UserTable(
            trusted=AddressPatterns.parse(self.white_addresses) or None, wording=PLAIN_WORDING
        )
        for account in self.accounts:
            table.put(account.user())
            table.put_rules(account.access_key, account.rules())
        return table


def _listed(
    kind: ResourceType, permissions: Mapping[str, frozenset[Action]]
) -> Iterator[AccessRule]:
    """Yield the rules of listed names: what their entry does not give is denied."""
    for name, allowed in permissions.items():
        pattern = ResourcePattern(kind, Pattern.LITERAL, name)
        if not allowed:
            yield AccessRule(pattern, (Action.ALL,), allow=False)
            continue
        rule = _allowing(pattern, allowed)
        assert rule is not None
        yield rule
        if denied := tuple(each for each in (Action.PUB, Action.SUB) if each not in allowed):
            yield AccessRule(pattern, denied, allow=False)


def _allowing(pattern: ResourcePattern, allowed: frozenset[Action]) -> AccessRule | None:
    actions = [
        *([Action.PUB] if Action.PUB in allowed else []),
        *([Action.SUB, Action.GET] if Action.SUB in allowed else []),
    ]
    return AccessRule(pattern, tuple(actions), allow=True) if actions else None


def _entries(document: Mapping[str, object], key: str) -> Iterator[tuple[str, frozenset[Action]]]:
    for each in _list(document, key):
        text = _word(each)
        name, equals, permission = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{text!r} in {key} is not of the form NAME=PERMISSION")
        try:
            yield name.strip(), _permission(permission.strip())
        except ValueError as error:
            raise ValueError(f"Parse resource permission error for {text}.\n{error}") from None


def _permission(text: str) -> frozenset[Action]:
    found = _PERMISSIONS.get(text)
    if found is None:
        raise ValueError("The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'.")
    return found


def _list(document: Mapping[str, object], key: str) -> Sequence[object]:
    found = document.get(key) or ()
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ValueError(f"{key} is not a list")
    return found


def _text(document: Mapping[str, object], key: str) -> str:
    found = document.get(key)
    return "" if found is None else _word(found).strip()


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} stands where a text belongs")
    return value
