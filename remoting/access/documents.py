"""Users and rules as JSON: of requests (names), and of the files (Java's numbers). SANS-IO.

A file keeps each user and the rules of each user as the values of Java's stores are: RocksDB
there, one JSON file here. Source: remoting/…/body/UserInfo.java, AclInfo.java, and the values that
RocketMQ 5.5.0 has stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from triomq.remoting.access.resources import Action, Pattern, ResourcePattern, ResourceType
from triomq.remoting.access.rules import AccessRule, AccessRules, Network, PolicyType
from triomq.remoting.access.users import SUBJECT, AccessUser, refused
from triomq.remoting.protocol.bodies import auth

_SUBJECT_USER = 1
_SUPER, _NORMAL = 1, 2
_ENABLED, _DISABLED = 1, 2
_ALLOW, _DENY = 1, 2


def user_body(user: AccessUser) -> auth.User:
    """Return a user as answers have it, with its password."""
    return auth.User(
        username=user.name,
        password=user.password,
        user_type="Super" if user.is_super else "Normal",
        user_status="enable" if user.enabled else "disable",
    )


def rules_body(name: str, rules: AccessRules) -> auth.Acl:
    """Return the rules of a user as answers have them."""
    return auth.Acl(
        subject=SUBJECT + name,
        policies=[
            auth.Policy(policy_type=kind.text, entries=[_entry_body(rule) for rule in of_kind])
            for kind in PolicyType
            if (of_kind := rules.of(kind))
        ],
    )


def _entry_body(rule: AccessRule) -> auth.PolicyEntry:
    return auth.PolicyEntry(
        resource=str(rule.resources),
        actions=[action.text for action in rule.actions],
        source_ips=[source.text for source in rule.sources] or None,
        decision="Allow" if rule.allow else "Deny",
    )


def rules_of_policy(policy: auth.Policy) -> tuple[AccessRule, ...]:
    """Return the rules that a request brings. Raises: Rejected, with Java's text."""
    if not policy.entries:
        raise refused("The policies is empty.")
    return tuple(_rule_of_entry(entry) for entry in policy.entries)


def _rule_of_entry(entry: auth.PolicyEntry) -> AccessRule:
    try:
        resources = ResourcePattern.parse(entry.resource or "")
    except ValueError as error:
        raise refused(f"The resource is null. {error}") from None
    actions: list[Action] = []
    for text in entry.actions or ():
        found = Action.__members__.get(text.upper())
        if found is Action.ANY:
            raise refused("The actions can not be Any.")
        if found is None:
            actions.clear()
            break
        actions.append(found)
    if not actions:
        names = ", ".join(action.text for action in Action if action is not Action.ANY)
        raise refused(f"The actions is empty. Write some of {names}")
    decision = (entry.decision or "").lower()
    if decision not in ("allow", "deny"):
        raise refused("The decision is null or illegal. Write Allow or Deny")
    sources = tuple(_source(text) for text in entry.source_ips or ())
    return AccessRule(resources, tuple(actions), decision == "allow", sources)


def _source(text: str) -> Network:
    if not text:
        raise refused("The source ip is empty.")
    try:
        return Network(text)
    except ValueError:
        raise refused(
            f"The source ip is invalid. {text!r} is neither an address nor a network such as"
            " 10.0.0.0/8"
        ) from None


def user_document(user: AccessUser) -> dict[str, object]:
    """Return a user as the file has it."""
    return {
        "password": user.password,
        "subjectType": _SUBJECT_USER,
        "userStatus": _ENABLED if user.enabled else _DISABLED,
        "userType": _SUPER if user.is_super else _NORMAL,
        "username": user.name,
    }


def user_of_document(document: Mapping[str, object]) -> AccessUser:
    """Return the user of a file. Raises: ValueError."""
    name, password = document.get("username"), document.get("password")
    if not isinstance(name, str) or not isinstance(password, str) or not name or not password:
        raise ValueError("a user has no username or no password")
    return AccessUser(
        name,
        password,
        is_super=_number(document, "userType", (_SUPER, _NORMAL)) == _SUPER,
        enabled=_number(document, "userStatus", (_ENABLED, _DISABLED)) == _ENABLED,
    )


def rules_document(name: str, rules: AccessRules) -> dict[str, object]:
    """Return the rules of a user as the file has them."""
    return {
        "policies": [
            {"entries": [_entry_document(rule) for rule in of_kind], "policyType": kind.value}
            for kind in PolicyType
            if (of_kind := rules.of(kind))
        ],
        "subject": {"subjectType": _SUBJECT_USER, "username": name},
    }


def _entry_document(rule: AccessRule) -> dict[str, object]:
    resource: dict[str, object] = {
        "resourcePattern": rule.resources.pattern.value,
        "resourceType": rule.resources.type.value,
    }
    if rule.resources.pattern is not Pattern.ANY:
        resource["resourceName"] = rule.resources.name
    return {
        "actions": [action.value for action in rule.actions],
        "decision": _ALLOW if rule.allow else _DENY,
        "environment": {"sourceIps": [source.text for source in rule.sources]}
        if rule.sources
        else {},
        "resource": resource,
    }


def rules_of_document(document: Mapping[str, Any]) -> tuple[str, AccessRules]:
    """Return the name of a user and its rules, from a file. Raises: ValueError."""
    try:
        name = document["subject"]["username"]
        rules = AccessRules()
        for policy in document["policies"]:
            kind = PolicyType(policy["policyType"])
            rules = rules.with_rules(kind, _rules_of_entries(policy["entries"]))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"rules lack a member: {error!r}") from None
    if not isinstance(name, str) or not name:
        raise ValueError("rules have no subject")
    return name, rules


def _rules_of_entries(entries: Iterable[Mapping[str, Any]]) -> Iterable[AccessRule]:
    for entry in entries:
        resource = entry["resource"]
        sources = (entry.get("environment") or {}).get("sourceIps") or ()
        yield AccessRule(
            ResourcePattern(
                ResourceType(resource["resourceType"]),
                Pattern(resource["resourcePattern"]),
                resource.get("resourceName") or "",
            ),
            tuple(Action(number) for number in entry["actions"]),
            _number(entry, "decision", (_ALLOW, _DENY)) == _ALLOW,
            tuple(Network(text) for text in sources),
        )


def _number(document: Mapping[str, object], member: str, allowed: tuple[int, int]) -> int:
    value = document.get(member)
    if value not in allowed:
        raise ValueError(f"{member} is {value!r}, not {allowed[0]} or {allowed[1]}")
    return int(value)
