"""Do the steps of a plan at the brokers, and tell of each whether it was done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs

from triomq.client.admin.accounts import ask_access
from triomq.client.admin.answers import Answers, all_of
from triomq.client.admin.cluster_files.difference import ClusterStep
from triomq.client.admin.cluster_files.fields import DEFAULT_POLICY
from triomq.client.admin.cluster_files.items import ClusterDocument, ItemKind, ItemSettings
from triomq.client.admin.cluster_files.snapshot import BrokerItems
from triomq.client.admin.documents import GROUP_FIELDS
from triomq.client.core.errors import SettingsError
from triomq.remoting.protocol.bodies.auth import Acl, Policy, PolicyEntry, User
from triomq.remoting.protocol.bodies.groups import GroupRetryPolicy, SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import AclHeader, DeleteAclHeader, UserHeader
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader
from triomq.remoting.protocol.headers.registration import KvConfigHeader, PutKvConfigHeader
from triomq.remoting.protocol.headers.topic import (
    CreateTopicHeader,
    DeleteGroupHeader,
    DeleteTopicHeader,
)
from triomq.remoting.protocol.names import DEFAULT_TOPIC, ORDER_TOPIC_CONFIG

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


@attrs.frozen
class StepOutcome:
    """What became of a step; ``reason`` is None if it was done."""

    step: ClusterStep
    reason: str | None


@attrs.frozen
class Applier:
    """Does steps at the brokers of a cluster."""

    admin: Admin
    cluster: str
    brokers: Mapping[str, BrokerItems]
    """broker → what it had before"""

    async def do_steps(self, steps: Sequence[ClusterStep]) -> list[StepOutcome]:
        """Do the steps, those of one kind at the same time; a failed one does not stop others."""
        outcomes: list[StepOutcome] = []
        for _, part in groupby(steps, key=lambda step: (step.kind, step.after is None)):
            numbered = {str(number): step for number, step in enumerate(part)}

            async def do_step(number: str, numbered: Mapping[str, ClusterStep] = numbered) -> None:
                await self.step(numbered[number])

            reasons = (await self.admin.for_each(numbered, do_step)).reasons()
            outcomes += [
                StepOutcome(step, reasons.get(number)) for number, step in numbered.items()
            ]
        return outcomes

    async def step(self, step: ClusterStep) -> None:
        """Do one step. Raises: TrioMQError."""
        match step.kind:
            case ItemKind.TOPICS:
                await self.topic(step)
            case ItemKind.GROUPS:
                await self.group(step)
            case ItemKind.USERS:
                await self.user(step)
            case ItemKind.RULES:
                await self.rules(step)
            case ItemKind.OFFSETS:
                await self.offsets(step)

    def address(self, step: ClusterStep) -> str:
        return self.brokers[step.place].address

    async def topic(self, step: ClusterStep) -> None:
        if step.after is None:
            header = DeleteTopicHeader(topic=step.name)
            await self.admin.ask(self.address(step), RequestCode.DELETE_TOPIC_IN_BROKER, header)
            return
        after = {**NEW_TOPIC, **step.after}
        create = CreateTopicHeader(
            topic=step.name,
            default_topic=DEFAULT_TOPIC,
            read_queue_count=after["readQueueNums"],
            write_queue_count=after["writeQueueNums"],
            perm=after["perm"],
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=after["topicSysFlag"],
            order=after["order"],
            attributes=",".join(
                f"{sign}={value}" if value else sign
                for sign, value in attribute_changes(step).items()
            ),
        )
        await self.admin.ask(self.address(step), RequestCode.UPDATE_AND_CREATE_TOPIC, create)

    async def group(self, step: ClusterStep) -> None:
        if step.after is None:
            header = DeleteGroupHeader(step.name, clean_offset=False)
            await self.admin.ask(self.address(step), RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
            return
        base = self.brokers[step.place].group_configs.get(
            step.name, SubscriptionGroupConfig(group_name=step.name)
        )
        values: dict[str, Any] = {
            GROUP_FIELDS[field]: value
            for field, value in step.after.items()
            if field not in ("attributes", "groupRetryPolicy")
        }
        if "groupRetryPolicy" in step.after:
            policy = json.dumps(step.after["groupRetryPolicy"]).encode()
            values["retry_policy"] = GroupRetryPolicy.decode(policy)
        config = attrs.evolve(base, **values, attributes=attribute_changes(step))
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self.admin.ask(self.address(step), code, body=config.encode())

    async def user(self, step: ClusterStep) -> None:
        header, address = UserHeader(step.name), self.address(step)
        if step.after is None:
            await ask_access(self.admin, address, RequestCode.AUTH_DELETE_USER, header)
            return
        user = User(
            username=step.name,
            user_type=step.after.get("userType"),
            user_status=step.after.get("userStatus"),
        )
        if step.before is None:
            new = attrs.evolve(user, password=new_password(step), user_status=None)
            code = RequestCode.AUTH_CREATE_USER
            await ask_access(self.admin, address, code, header, new.encode())
            if user.user_status in (None, "enable"):
                return  # as every new user
        await ask_access(self.admin, address, RequestCode.AUTH_UPDATE_USER, header, user.encode())

    async def rules(self, step: ClusterStep) -> None:
        address = self.address(step)
        before, after = step.before or {}, step.after or {}
        gone = [key for key in before if key not in after]
        for key in gone:
            header = DeleteAclHeader(step.name, policy_type(key), key.removeprefix(DEFAULT_POLICY))
            await ask_access(self.admin, address, RequestCode.AUTH_DELETE_ACL, header)
        new = {key: rule for key, rule in after.items() if before.get(key) != rule}
        if not new:
            return
        known = len(before) > len(gone)
        code = RequestCode.AUTH_UPDATE_ACL if known else RequestCode.AUTH_CREATE_ACL
        body = acl_of(step.name, new).encode()
        await ask_access(self.admin, address, code, AclHeader(step.name), body)

    async def offsets(self, step: ClusterStep) -> None:
        # Imported here: a command's module, and only an import of a file moves groups.
        from triomq.client.admin.group_resets import reset

        topic, _, group = step.name.partition("@")
        for queue in step.changed:
            header = ResetOffsetHeader(group, topic, 0, True, int(queue), (step.after or {})[queue])
            all_of(await reset(self.admin, header, {step.place: self.address(step)}))

    async def forget_topics(
        self, outcomes: Iterable[StepOutcome], left: Iterable[str]
    ) -> list[str]:
        """Delete the routes of deleted topics that no broker has any more, at the name servers.

        ``left``: topics that some broker still has.

        Returns: reasons why name servers did not do it.
        """
        deleted = {
            one.step.name
            for one in outcomes
            if one.step.kind is ItemKind.TOPICS and one.step.after is None and one.reason is None
        }
        reasons: list[str] = []
        for topic in sorted(deleted - set(left)):
            header = DeleteTopicHeader(topic=topic, cluster_name=self.cluster)
            order = KvConfigHeader(namespace=ORDER_TOPIC_CONFIG, key=topic)
            for code, asked in (
                (RequestCode.DELETE_TOPIC_IN_NAMESRV, header),
                (RequestCode.DELETE_KV_CONFIG, order),
            ):
                answers = await self._name_servers(code, asked)
                reasons += [str(error) for error in answers.failures.values()]
        return reasons

    async def order_topics(
        self, document: ClusterDocument, outcomes: Iterable[StepOutcome]
    ) -> list[str]:
        """Store the queues of topics that became strictly ordered, at the name servers.

        Returns: reasons why name servers did not do it.
        """
        became = {
            one.step.name
            for one in outcomes
            if one.step.kind is ItemKind.TOPICS
            and one.reason is None
            and (one.step.after or {}).get("order")
        }
        reasons: list[str] = []
        for topic in sorted(became):
            item = document.sections[ItemKind.TOPICS][topic]
            queues = {
                place: {**NEW_TOPIC, **(broker.kinds[ItemKind.TOPICS] or {}).get(topic, {}), **own}
                for place, broker in self.brokers.items()
                if ":" not in place and (own := item.at(place)) is not None
            }
            value = ";".join(f"{place}:{own['writeQueueNums']}" for place, own in queues.items())
            header = PutKvConfigHeader(namespace=ORDER_TOPIC_CONFIG, key=topic, value=value)
            answers = await self._name_servers(RequestCode.PUT_KV_CONFIG, header)
            reasons += [str(error) for error in answers.failures.values()]
        return reasons

    async def _name_servers(self, code: RequestCode, header: object) -> Answers[object]:
        """Ask all name servers: they do not talk to each other."""
        return await self.admin.for_each(
            self.admin.namesrv_addresses, lambda address: self.admin.ask(address, code, header)
        )


NEW_TOPIC: ItemSettings = {
    "readQueueNums": 8,
    "writeQueueNums": 8,
    "perm": 6,
    "order": False,
    "topicSysFlag": 0,
}
"""settings of a new topic that the file does not name, as `topic create` has them"""


def attribute_changes(step: ClusterStep) -> dict[str, str]:
    """Return ``+key`` → value, and ``-key`` → an empty text."""
    old = (step.before or {}).get("attributes", {})
    new = (step.after or {}).get("attributes", {})
    changes = {f"+{key}": value for key, value in new.items() if old.get(key) != value}
    return {**changes, **{f"-{key}": "" for key in old if key not in new}}


def new_password(step: ClusterStep) -> str:
    """Return the password of a new user. Raises: SettingsError."""
    variable = (step.after or {}).get("passwordEnv")
    if variable is None:
        raise SettingsError(
            f"user {step.name} is new at {step.place}, and the file has no password for it: write"
            " `passwordEnv: NAME` and put the password into that environment variable, or create"
            " the user with `mqadmin user create`"
        )
    if not (password := os.environ.get(variable)):
        raise SettingsError(
            f"user {step.name} is new at {step.place}, and the environment variable {variable} is"
            " not set: put its password there"
        )
    return password


def policy_type(key: str) -> str:
    """Return the type of a rule's policy, ``Custom`` or ``Default``."""
    return "Default" if key.startswith(DEFAULT_POLICY) else "Custom"


def acl_of(subject: str, rules: Mapping[str, ItemSettings]) -> Acl:
    """Return the rules of a subject in RocketMQ's form."""
    by_type: dict[str, list[PolicyEntry]] = {}
    for key, rule in rules.items():
        entry = PolicyEntry(
            resource=key.removeprefix(DEFAULT_POLICY),
            actions=rule["actions"],
            source_ips=rule["sourceIps"],
            decision=rule["decision"],
        )
        by_type.setdefault(policy_type(key), []).append(entry)
    policies = [Policy(policy_type=kind, entries=entries) for kind, entries in by_type.items()]
    return Acl(subject=subject, policies=policies)
