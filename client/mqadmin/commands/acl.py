"""Commands about the rights of users: createAcl, updateAcl, deleteAcl, getAcl, listAcl, copyAcl."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from triomq.client.admin.accounts import ask_access, listed, same_reason
from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.arguments import Option, UsageError, Values, one_of_words
from triomq.client.admin.cluster_files.fields import ACTIONS, RESOURCES
from triomq.client.admin.errors import SubjectMissing
from triomq.client.core.errors import PolicyNotFound
from triomq.client.mqadmin.core.account_copy import BETWEEN, AccountCopy, names, preposition
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.places import BROKERS, EVERYWHERE, beside_missing, chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered, table_of
from triomq.remoting.protocol.bodies.auth import Acl, Policy, PolicyEntry
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import AclHeader, DeleteAclHeader, ListAclsHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


def read_subject(text: str) -> str:
    """Read ``User:name``."""
    kind, _, name = text.strip().partition(":")
    if kind != "User" or not name:
        raise ValueError("use User:name")
    return text.strip()


def read_resources(text: str) -> list[str]:
    """Read ``Topic:orders*,Group:*``."""
    found = names(text)
    for resource in found:
        kind, _, name = resource.partition(":")
        if resource != "*" and (kind not in RESOURCES or not name):
            raise ValueError(f"{resource!r} is none of {', '.join(RESOURCES)} with :name")
    return found


def read_actions(text: str) -> list[str]:
    """Read ``Pub,Sub``."""
    return [one_of_words(*ACTIONS)(name) for name in names(text)]


def entries(acl: Acl) -> list[dict[str, object]]:
    """Return a row for each rule of a subject."""
    return [
        {
            "subject": acl.subject,
            "policyType": policy.policy_type,
            "resource": entry.resource,
            "actions": entry.actions or [],
            "sourceIps": entry.source_ips or [],
            "decision": entry.decision,
        }
        for policy in acl.policies or []
        for entry in policy.entries or []
    ]


async def change_acl(admin: Admin, options: Values, *, code: RequestCode, verb: str) -> Result:
    """Create or change the rules of a subject for some resources."""
    subject, resources = options.text("subject"), options.value("resources")
    rules = [
        PolicyEntry(
            resource=resource,
            actions=options.value("actions"),
            source_ips=options.value("sourceIp"),
            decision=options.text("decision"),
        )
        for resource in resources
    ]
    body = Acl(subject=subject, policies=[Policy(policy_type="Custom", entries=rules)]).encode()
    addresses = await chosen_brokers(admin, options, masters_only=False)
    answers = await admin.for_each(
        addresses, lambda address: ask_access(admin, address, code, AclHeader(subject), body)
    )
    same_reason(answers)
    return done(answers, subject, resources, verb)


async def delete_acl(admin: Admin, options: Values) -> Result:
    subject, resources = options.text("subject"), options.value("resources")
    addresses = await chosen_brokers(admin, options, masters_only=False)

    async def delete_rules(address: str) -> None:
        for resource in resources or [None]:
            header = DeleteAclHeader(subject, "Custom", resource)
            await ask_access(admin, address, RequestCode.AUTH_DELETE_ACL, header)

    answers = await admin.for_each(addresses, delete_rules)
    same_reason(answers)
    return done(answers, subject, resources, "delete")


def done(answers: Answers[object], subject: str, resources: list[str] | None, verb: str) -> Result:
    return answered(
        answers,
        {"subject": subject, "resources": resources, "brokers": sorted(answers.values)},
        [f"{verb} acl {preposition(verb)} {address} success." for address in answers.values],
    )


async def acls_at(
    admin: Admin, address: str, subject: str | None, resource: str | None = None
) -> list[Acl]:
    """Return the rules of a broker, of subjects and resources with these parts of the names."""
    header = ListAclsHeader(subject, resource)
    return await listed(admin, address, RequestCode.AUTH_LIST_ACL, header, Acl)


def acls_result(answers: Answers[list[Acl]]) -> Result:
    known = {
        address: [row for acl in acls for row in entries(acl)]
        for address, acls in answers.some().items()
    }
    rows = [{**row, "broker": address} for address, found in known.items() for row in found]
    table = table_of(
        rows,
        {
            "Subject": "subject",
            "PolicyType": "policyType",
            "Resource": "resource",
            "Actions": lambda row: ",".join(row["actions"]),
            "SourceIp": lambda row: ",".join(row["sourceIps"]),
            "Decision": "decision",
            "Broker Addr": "broker",
        },
    )
    return answered(answers, {"brokers": known}, [table])


async def get_acl(admin: Admin, options: Values) -> Result:
    subject = options.maybe_text("subject")
    if subject is None:
        raise UsageError("-s/--subject is missing: User:name; `mqadmin acl list` lists all")
    addresses = await chosen_brokers(admin, options)

    async def rules_at(address: str) -> list[Acl]:
        try:
            answer = await ask_access(admin, address, RequestCode.AUTH_GET_ACL, AclHeader(subject))
        except (PolicyNotFound, SubjectMissing):
            return []
        return [read_body(Acl, answer)] if answer.body else []

    answers = await beside_missing(admin, options, await admin.for_each(addresses, rules_at))
    if not any(answers.some().values()) and not answers.failures:
        raise SubjectMissing(
            f"rules for {subject!r}",
            "`mqadmin acl create` makes some; `mqadmin user list` lists the users",
        )
    return acls_result(answers)


async def list_acls(admin: Admin, options: Values) -> Result:
    addresses = await chosen_brokers(admin, options)
    subject, resource = options.maybe_text("subject"), options.maybe_text("resource")
    return acls_result(
        await admin.for_each(addresses, lambda address: acls_at(admin, address, subject, resource))
    )


async def copy_acls(admin: Admin, options: Values) -> Result:
    """Copy all rules of subjects; rules of the target for other resources stay."""
    copy = AccountCopy(
        "acl",
        "rules of",
        (RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL),
        AclHeader,
        lambda address: acls_at(admin, address, None),
        lambda acl: acl.subject or "",
    )
    return await copy.copy_records(admin, options, options.value("subjects"))


SUBJECT = Option("-s, --subject SUBJECT", "whose rights: User:name", read_subject, required=True)
RULE = (
    *EVERYWHERE,
    SUBJECT,
    Option(
        "-r, --resources LIST",
        "of what, joined by commas: Topic:orders, Topic:pre*, Group:*, Cluster:name",
        read_resources,
        required=True,
    ),
    Option("-a, --actions LIST", f"which of {', '.join(ACTIONS)}", read_actions, required=True),
    Option("-d, --decision WORD", "Allow or Deny", one_of_words("Allow", "Deny"), required=True),
    Option("-i, --sourceIp LIST", "only from these addresses or networks", names),
)

COMMANDS = (
    AdminCommand(
        "createAcl",
        partial(change_acl, code=RequestCode.AUTH_CREATE_ACL, verb="create"),
        effect=Effect.CHANGES,
    ).with_options(*RULE),
    AdminCommand(
        "updateAcl",
        partial(change_acl, code=RequestCode.AUTH_UPDATE_ACL, verb="update"),
        effect=Effect.CHANGES,
    ).with_options(*RULE),
    AdminCommand("deleteAcl", delete_acl, effect=Effect.DESTROYS, loss="the rules").with_options(
        *EVERYWHERE,
        SUBJECT,
        Option("-r, --resources LIST", "only the rules for these (default: all)", read_resources),
    ),
    AdminCommand("getAcl", get_acl).with_options(
        *BROKERS, Option("-s, --subject SUBJECT", "whose rights: User:name", read_subject)
    ),
    AdminCommand("listAcl", list_acls).with_options(
        *BROKERS,
        Option("-s, --subject TEXT", "only subjects with this part of the name"),
        Option("-r, --resource TEXT", "only resources with this part of the name"),
    ),
    AdminCommand("copyAcl", copy_acls, effect=Effect.CHANGES).with_options(
        *BETWEEN,
        Option("-s, --subjects LIST", "only these, joined by commas (default: all)", names),
    ),
)
