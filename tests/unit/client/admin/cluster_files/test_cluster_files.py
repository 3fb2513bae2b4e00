"""Cluster files without a cluster: what a file may say, how it is written, and what it changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.client.admin.cluster_files import file_text, reading
from triomq.client.admin.cluster_files.applying import acl_of, attribute_changes, new_password
from triomq.client.admin.cluster_files.difference import (
    ClusterStep,
    Present,
    difference_lines,
    plan_of,
    summary,
)
from triomq.client.admin.cluster_files.file_text import read_tree, text_of, tree_of
from triomq.client.admin.cluster_files.items import (
    FILE_BYTES_MAX,
    ClusterDocument,
    ClusterItem,
    ItemKind,
    item_of,
)
from triomq.client.admin.cluster_files.offset_steps import limited
from triomq.client.admin.cluster_files.reading import document_of, root_of
from triomq.client.core.errors import SettingsError

HEAD = "format: 1\ncluster: C\n"


def document(text: str, name: str = "c.yaml") -> ClusterDocument:
    return document_of(tree_of(text if name.endswith(".json") else HEAD + text, name))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "topics:\n  orders:\n    prem: 6\n",
            "line 5: topics.orders.prem is no field; the nearest is perm",
        ),
        (
            "topics: {orders: {perm: 9}}",
            "line 3: topics.orders.perm is 9, and must be a whole number",
        ),
        ("topics: {orders: {perm: yes}}", "topics.orders.perm is True"),
        ("topics: {orders: {order: 1}}", "must be true or false"),
        ("topic: {}", "line 3: topic is no section; the nearest is topics"),
        ("topics: [orders]", "topics must be a map of names"),
        ("topics: {'a b': {}}", "illegal characters"),
        ("topics: {'%RETRY%g': {}}", "belongs to the system or to a group"),
        ("topics: {TBW102: {}}", "belongs to the system or to a group"),
        ("groups: {CID_RMQ_SYS_X: {}}", "belongs to the system"),
        ("topics: {a: {attributes: {x: 1}}}", "must be a map of texts"),
        ("topics: {a: {attributes: {x: 'a,b'}}}", "comma"),
        (
            "topics: {a: {brokers: {b: gone}}}",
            "topics.a.brokers.b must be a map of fields, or absent",
        ),
        ("topics: {a: {brokers: {b: {brokers: {}}}}}", "topics.a.brokers.b.brokers is no field"),
        ("topics: {a: {}, a: {}}", "line 3: topics.a occurs twice"),
        ("topics: {a: &x {perm: 6}, b: *x}", "is an alias"),
        ("groups: {g: {groupRetryPolicy: {type: [1]}}}", "must be CUSTOMIZED or EXPONENTIAL"),
        ("groups: {g: {groupRetryPolicy: {typ: CUSTOMIZED}}}", "must be a map of type, custom"),
        (
            "groups: {g: {groupRetryPolicy: {type: CUSTOMIZED, customizedRetryPolicy: [x]}}}",
            "is not RocketMQ's JSON of a retry policy",
        ),
        ("users: {ann: {password: secret}}", "users.ann.password must not be in the file"),
        ("users: {ann: {userType: Root}}", "must be Super or Normal"),
        ("rules: {ann: {}}", "must be User:NAME"),
        ("rules: {'User:ann': {orders: {actions: [Pub], decision: Allow}}}", "with :NAME"),
        ("rules: {'User:ann': {'Topic:o': {actions: [Pub]}}}", "has no decision"),
        ("rules: {'User:ann': {'Topic:o': {actions: [Read], decision: Allow}}}", "must be Pub or"),
        ("offsets: {g: {t: {b: {x: 1}}}}", "offsets.g.t.b.x must be the number of a queue"),
        ("offsets: {g: {t: {b: {0: -1}}}}", "offsets.g.t.b.0 is -1"),
        ("a: [", "is not YAML"),
        ("? [a]\n: 1", "is not a key"),
        ("- a", "is not YAML"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        document(text)
    assert str(caught.value).startswith("c.yaml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is not a cluster file"),
        ("{}", "has no format; add `format: 1`"),
        ('{"format": 2}', "format is 2, and this mqadmin reads 1; update mqadmin"),
        ('{"format": true}', "format is True"),
        ('{"format": 1}', "cluster must be the name of the cluster"),
        ('{"format": 1, "cluster": "C", "brokers": [1]}', "brokers must be a list of names"),
        ('{"format": 1, "format": 1}', "the key 'format' occurs twice"),
        ("{", "is not JSON"),
        ('{"format": 1, "cluster": "C", "topics": {"a": {"brokers": null}}}', "map of brokers"),
    ],
)
def test_a_json_file_is_checked_likewise(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        document(text, "c.json")
    assert words in str(caught.value)


def test_keys_are_texts_as_they_were_typed() -> None:
    found = document("topics: {17: {}, on: {}, 2026-11-27: {}}")
    assert list(found.sections[ItemKind.TOPICS]) == ["17", "on", "2026-11-27"]


def test_files_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match=r"8 MiB.*divide it"):
        read_tree(large)
    with pytest.raises(SettingsError, match=r"cannot be read.*cluster export"):
        read_tree(tmp_path / "nowhere.json")
    (tmp_path / "latin.json").write_bytes(b"\xe4")
    with pytest.raises(SettingsError, match="UTF-8"):
        read_tree(tmp_path / "latin.json")
    for name, text in (("deep.yaml", "[" * 20000), ("deep.json", "[" * 200000)):
        (tmp_path / name).write_text(text)
        with pytest.raises(SettingsError, match=r"nested too deeply|is not YAML"):
            read_tree(tmp_path / name)
    monkeypatch.setattr(reading, "ITEMS_MAX", 3)
    with pytest.raises(SettingsError, match=r"topics.d is item 4, and 3 is the limit"):
        document("topics: {a: {}, b: {}, c: {}, d: {}}")


def test_without_pyyaml_the_extra_is_named_and_json_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SettingsError, match=r"pip install 'triomq\[admin\]'.*\.json"):
        document("topics: {}")
    with pytest.raises(SettingsError, match=r"pip install 'triomq\[admin\]'"):
        text_of({}, None)
    assert document('{"format": 1, "cluster": "C"}', "c.json").cluster == "C"
    assert text_of({"format": 1}, "c.json") == '{\n  "format": 1\n}\n'


TOPIC = st.fixed_dictionaries(
    {"perm": st.sampled_from([2, 4, 6]), "order": st.booleans()},
    optional={
        "attributes": st.dictionaries(st.sampled_from("ab"), st.text("xy1", min_size=1)).map(
            lambda found: dict(sorted(found.items()))
        )
    },
)
RULES = st.dictionaries(
    st.sampled_from(["*", "Topic:orders", "Default Group:g*"]),
    st.fixed_dictionaries(
        {
            "actions": st.sampled_from([["Pub"], ["Pub", "Sub"]]),
            "sourceIps": st.sampled_from([[], ["10.0.0.1"]]),
            "decision": st.sampled_from(["Allow", "Deny"]),
        }
    ),
)
PLACES = ("a", "b", "c")


def at_places(settings: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Settings at three brokers, not at none."""
    return st.fixed_dictionaries({place: st.none() | settings for place in PLACES}).filter(
        lambda found: any(own is not None for own in found.values())
    )


@given(topic=at_places(TOPIC), rules=at_places(RULES), name=st.sampled_from(["c.yaml", "c.json"]))
def test_what_brokers_have_survives_the_file(topic: Any, rules: Any, name: str) -> None:
    """Each broker's settings, also where brokers differ; and nothing is left to change."""
    offsets = ClusterItem(None, {"a": {"0": 5, "11": 7}})
    written = ClusterDocument(
        cluster="C",
        brokers=PLACES,
        missing=["d"],
        sections={
            ItemKind.TOPICS: {"orders": item_of(topic)},
            ItemKind.RULES: {"User:ann": item_of(rules)},
            ItemKind.OFFSETS: {"orders@g": offsets},
        },
    )
    text = text_of(root_of(written), name)
    found = document_of(tree_of(text, name))
    assert text_of(root_of(found), name) == text
    assert (found.cluster, list(found.brokers), found.missing) == ("C", list(PLACES), ["d"])
    assert found.sections[ItemKind.OFFSETS] == {"orders@g": offsets}
    present: dict[str, Any] = {}
    for place in PLACES:
        topics = {"orders": topic[place]} if topic[place] is not None else {}
        subjects = {"User:ann": rules[place]} if rules[place] is not None else {}
        present[place] = {ItemKind.TOPICS: topics, ItemKind.RULES: subjects}
        assert found.sections[ItemKind.TOPICS]["orders"].at(place) == topic[place]
    plan = plan_of(found, present, prune=True)
    assert (list(plan.steps), plan.unnamed) == ([], 0)


def present(**topics: Any) -> Present:
    return {"a": {ItemKind.TOPICS: topics, ItemKind.GROUPS: {"old": {}}, ItemKind.USERS: None}}


def test_a_plan_changes_only_what_the_file_names() -> None:
    wanted = document("topics: {orders: {perm: 4}, new: {perm: 6}, same: {}}")
    known = present(orders={"perm": 6, "order": True}, same={"perm": 2}, other={"perm": 6})
    plan = plan_of(wanted, known, prune=False)
    new, orders = plan.steps
    assert (new.name, new.action, new.after) == ("new", "create", {"perm": 6})
    assert (orders.name, orders.action, orders.changed) == ("orders", "update", ["perm"])
    assert orders.after == {"perm": 4, "order": True}
    assert (plan.unchanged, plan.unnamed, plan.impossible) == (1, 1, {})
    assert list(difference_lines(plan.steps)) == [
        "+ topic new at a",
        "    + perm: 6",
        "~ topic orders at a",
        "    - perm: 6",
        "    + perm: 4",
    ]
    assert summary(plan.steps) == "1 to create, 1 to update, 0 to delete"
    pruned = plan_of(wanted, known, prune=True)
    assert [(step.kind, step.name) for step in pruned.steps if step.action == "delete"] == [
        (ItemKind.TOPICS, "other")
    ]  # and not the group: the file has no section of groups


def test_an_item_that_shall_be_absent_is_deleted_with_prune_only() -> None:
    wanted = document("topics: {orders: {brokers: {a: absent}}}")
    known = present(orders={"perm": 6})
    plan = plan_of(wanted, known, prune=False)
    assert (list(plan.steps), plan.unnamed) == ([], 1)
    (step,) = plan_of(wanted, known, prune=True).steps
    assert (step.name, step.action, step.lines) == ("orders", "delete", [])


def test_what_is_deleted_comes_last_and_rules_before_their_user() -> None:
    wanted = document("users: {}\nrules: {}\ntopics: {new: {}}")
    known: Present = {
        "a": {
            ItemKind.USERS: {"ann": {"userType": "Normal"}},
            ItemKind.RULES: {"User:ann": {}},
            ItemKind.TOPICS: {"old": {}},
        },
        "a:1": {ItemKind.USERS: {"bob": {}}, ItemKind.RULES: {}},
    }
    steps = plan_of(wanted, known, prune=True).steps
    assert [(step.name, step.place) for step in steps] == [
        ("new", "a"),
        ("old", "a"),
        ("User:ann", "a"),
        ("ann", "a"),
        ("bob", "a:1"),
    ]


def test_users_need_a_broker_with_access_control() -> None:
    plan = plan_of(document("users: {ann: {userType: Normal}}"), present(), prune=False)
    assert list(plan.steps) == []
    assert "authenticationMetadataProvider" in plan.impossible["a"]


def test_brokers_get_other_names() -> None:
    found = document("topics: {orders: {brokers: {a: absent, 'b:1': {perm: 4}}}}")
    new = found.renamed({"a": "x", "b": "y"})
    assert new.sections[ItemKind.TOPICS]["orders"].special == {"x": None, "y:1": {"perm": 4}}
    assert new.special_brokers() == {"x": "topic orders", "y": "topic orders"}


def step(kind: ItemKind, name: str, before: Any, after: Any) -> ClusterStep:
    return ClusterStep(place="a", kind=kind, name=name, before=before, after=after)


def test_attributes_are_sent_as_changes() -> None:
    change = step(
        ItemKind.TOPICS,
        "orders",
        {"attributes": {"same": "1", "old": "2", "other": "3"}},
        {"attributes": {"same": "1", "other": "4", "new": "5"}},
    )
    assert attribute_changes(change) == {"+other": "4", "+new": "5", "-old": ""}


def test_the_password_of_a_new_user_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match="write `passwordEnv: NAME`"):
        new_password(step(ItemKind.USERS, "ann", None, {}))
    new = step(ItemKind.USERS, "ann", None, {"passwordEnv": "ANN_PASSWORD"})
    with pytest.raises(SettingsError, match="ANN_PASSWORD is not set"):
        new_password(new)
    monkeypatch.setenv("ANN_PASSWORD", "secret")
    assert new_password(new) == "secret"


def test_rules_go_into_the_policy_of_their_type() -> None:
    rule = {"actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
    acl = acl_of("User:ann", {"Topic:orders": rule, "Default *": rule})
    assert [
        (policy.policy_type, [entry.resource for entry in policy.entries or []])
        for policy in acl.policies or []
    ] == [("Custom", ["Topic:orders"]), ("Default", ["*"])]


def test_offsets_stay_within_their_queues() -> None:
    move = step(ItemKind.OFFSETS, "orders@g", {"0": 1}, {"0": 3, "1": 9, "2": 4})
    within, notes = limited(move, {"0": 10, "1": 5})
    assert within.after == {"0": 3, "1": 5}
    assert len(notes) == 2
    assert "queue 1 at a: offset 9 is behind the end of the queue; set to the end, 5" in notes[0]
    assert "queue 2 at a: the queue does not exist" in notes[1]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be written.*name another file"):
        file_text.write_text(tmp_path / "nowhere" / "c.yaml", "x")
