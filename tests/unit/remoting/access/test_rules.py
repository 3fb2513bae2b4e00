"""Which rule decides, against the recorded experiments of RocketMQ 5.5.0, and against a model."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from access_requests import recorded
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.access import rules as rules_module
from triomq.remoting.access.changes import AccessChanges
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.resources import Action, ResourcePattern, topic_need
from triomq.remoting.access.rules import AccessRule, AccessRules, Network
from triomq.remoting.access.users import AccessUser, UserTable
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.auth import Acl
from triomq.remoting.protocol.headers.auth import AclHeader

EXPERIMENTS = list(recorded("precedence"))


@pytest.mark.parametrize("row", EXPERIMENTS, ids=lambda row: row["name"])
def test_the_rule_decides_that_decides_at_java(row: dict[str, Any]) -> None:
    erin = AccessUser("erin", "x")
    table = UserTable(users={"erin": erin})
    policies = [
        {"policyType": kind, "entries": row[kind.lower()]}
        for kind in ("Custom", "Default")
        if row[kind.lower()] is not None
    ]
    body = Acl.from_plain({"policies": policies})
    try:
        AccessChanges(table).put_rules(AclHeader("User:erin"), body)
    except Rejected:
        assert "no matched policies" in row["result"]
    control = AccessControl(table, "DefaultCluster")
    source = (
        "127.0.0.9" if ".9" in row["name"] + row["result"] or "ip" in row["name"] else "127.0.0.1"
    )
    assert answer_to(control, erin, row["topic"], source) == row["result"]


def answer_to(control: AccessControl, user: AccessUser, topic: str, source: str) -> str:
    try:
        control.require(user, [topic_need(topic, Action.PUB)], source)
    except Rejected as error:
        return f"{error.code} {error.remark}"
    return "ALLOW"


ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.9.9", "::1", "::ffff:10.0.0.1"])
RULES = st.lists(
    st.builds(
        AccessRule,
        st.sampled_from(["*", "Topic:*", "Topic:a*", "Topic:ab*", "Topic:ab", "Group:ab"]).map(
            ResourcePattern.parse
        ),
        st.sampled_from([(Action.ALL,), (Action.PUB,), (Action.SUB, Action.GET)]),
        st.booleans(),
        st.sampled_from([(), (Network("10.0.0.0/24"),), (Network("::1"),)]),
    ),
    max_size=6,
).map(tuple)


@given(RULES, RULES, st.sampled_from(["ab", "abc", "b"]), ADDRESSES)
def test_any_rules_decide_as_a_model_that_sorts_them(
    custom: tuple[AccessRule, ...], default: tuple[AccessRule, ...], topic: str, address: str
) -> None:
    need = topic_need(topic, Action.PUB)
    place = address.removeprefix("::ffff:")

    def order(rule: AccessRule) -> tuple[int, bool]:
        exactness = ["Topic:" + topic, "Topic:ab*", "Topic:a*", "Topic:*", "*"]
        return exactness.index(str(rule.resources)), rule.allow

    def applying(rules: tuple[AccessRule, ...]) -> list[AccessRule]:
        return [
            rule
            for rule in rules
            if (
                str(rule.resources) in ("*", "Topic:*", f"Topic:{topic}")
                or (
                    str(rule.resources).endswith("*")
                    and topic.startswith(rule.resources.name)
                    and str(rule.resources).startswith("Topic:")
                )
            )
            and rule.actions[0] in (Action.ALL, Action.PUB)
            and (
                not rule.sources
                or (rule.sources[0].text == "::1" and place == "::1")
                or (rule.sources[0].text == "10.0.0.0/24" and place == "10.0.0.1")
            )
        ]

    expected = sorted(applying(custom), key=order) or sorted(applying(default), key=order)
    decided = AccessRules(custom, default).decide(need, address)
    assert (decided.rule is None) == (not expected)
    assert decided.allowed == (bool(expected) and expected[0].allow)


def test_a_super_user_may_do_what_a_rule_denies_and_nobody_else_what_no_rule_allows() -> None:
    deny = AccessRule(ResourcePattern.parse("*"), (Action.ALL,), allow=False)
    table = UserTable(
        users={"root": AccessUser("root", "x", is_super=True), "erin": AccessUser("erin", "x")},
        rules={"root": AccessRules((deny,))},
    )
    control = AccessControl(table, "C")
    need = topic_need("t", Action.PUB)
    control.require(table.users["root"], [need], "::1")
    for user in table.users["erin"], None:
        with pytest.raises(Rejected):
            control.require(user, [need], "::1")
    control.require(None, [], "::1")
    assert sum(control.refusals.values()) == 2


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("topic:m*x*", "Topic:m*"),
        ("TOPIC:*", "Topic:*"),
        ("Topic:", "Topic:"),
        ("*", "*"),
        ("cluster:C", "Cluster:C"),
    ],
)
def test_resources_are_read_in_every_spelling_that_java_reads(text: str, written: str) -> None:
    assert str(ResourcePattern.parse(text)) == written


@pytest.mark.parametrize("text", ["TA", "*:*", "Foo:TA", " Topic:sp ", "", "Any:x"])
def test_other_resources_are_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="write Topic:NAME"):
        ResourcePattern.parse(text)


def test_a_more_exact_pattern_has_the_smaller_rank() -> None:
    texts = ["Topic:ab", "Topic:ab*", "Topic:a*", "Topic:*", "*"]
    ranks = [ResourcePattern.parse(text).rank for text in texts]
    assert all(left < right for left, right in itertools.pairwise(ranks))


def test_what_a_user_asked_for_takes_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "DECIDED_MAX", 10)
    rule = AccessRule(ResourcePattern.parse("Topic:a*"), (Action.PUB,), allow=True)
    rules = AccessRules((rule,))
    for number in range(100):
        for name, found in ((f"a{number}", rule), (f"b{number}", None)):
            assert rules.decide(topic_need(name, Action.PUB), "127.0.0.1").rule == found
    assert len(rules._decided) <= 10
    rules.decide(topic_need("x" * 256, Action.PUB), "10.0.0.1")
    assert all(len(need.resource.name) < 256 for need, _ in rules._decided)
