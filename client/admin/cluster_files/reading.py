"""Make a cluster document of a file's tree, and a tree of a document. Pure.

What the file says is checked before any server sees it: each error names the path, the wrong field
and the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from triomq.client.admin.cluster_files.fields import (
    FIELDS,
    OFFSET_MAX,
    QUEUES_MAX,
    RULE_DEFAULTS,
    RULE_FIELDS,
    Check,
    name_complaint,
    resource_complaint,
    whole_number,
)
from triomq.client.admin.cluster_files.items import (
    FORMAT,
    ITEMS_MAX,
    ClusterDocument,
    ClusterItem,
    FileTree,
    ItemKind,
    ItemSettings,
    KeyPath,
)

SPECIAL = "brokers"
"""the field of an item for what is different at some brokers"""
ABSENT = "absent"
HEAD = ("format", "cluster", "brokers", "missing")
IGNORED = "failures"
"""a key of ``cluster export --json``"""


def document_of(tree: FileTree) -> ClusterDocument:
    """Return what a file says. Raises: SettingsError for the first thing that is wrong."""
    return _DocumentReader(tree).document()


@attrs.define
class _DocumentReader:
    tree: FileTree
    count: int = 0

    def document(self) -> ClusterDocument:
        root = self.map_at(self.tree.root, (), "is not a cluster file: it has no keys")
        version = root.get("format")
        if "format" not in root:
            raise self.tree.wrong((), f"has no format; add `format: {FORMAT}`")
        if version != FORMAT or isinstance(version, bool):
            raise self.tree.wrong(
                ("format",), f"is {version!r}, and this mqadmin reads {FORMAT}; update mqadmin"
            )
        self.known(root, (), [*HEAD, *(kind.value for kind in ItemKind), IGNORED], "section")
        cluster = root.get("cluster")
        if not isinstance(cluster, str) or not cluster:
            raise self.tree.wrong(("cluster",), "must be the name of the cluster")
        sections = {
            kind: self.offsets(root[kind.value])
            if kind is ItemKind.OFFSETS
            else self.section(kind, root[kind.value])
            for kind in ItemKind
            if kind.value in root
        }
        return ClusterDocument(
            cluster=cluster,
            brokers=self.names(root, "brokers"),
            missing=self.names(root, "missing"),
            sections=sections,
        )

    def names(self, root: Mapping[str, object], key: str) -> list[str]:
        found = root.get(key, [])
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.tree.wrong((key,), "must be a list of names")
        return found

    def section(self, kind: ItemKind, value: object) -> dict[str, ClusterItem]:
        path = (kind.value,)
        items: dict[str, ClusterItem] = {}
        for name, fields in self.map_at(value, path, "must be a map of names").items():
            here = (*path, name)
            self.counted(here)
            if (complaint := name_complaint(kind, name)) is not None:
                raise self.tree.wrong(here, f": {complaint}")
            items[name] = self.item(kind, fields, here)
        return items

    def item(self, kind: ItemKind, value: object, path: KeyPath) -> ClusterItem:
        fields = dict(self.map_at(value, path, "must be a map of fields"))
        special: dict[str, ItemSettings | None] = {}
        brokers = fields.pop(SPECIAL, {})
        here = (*path, SPECIAL)
        for place, own in self.map_at(brokers, here, "must be a map of brokers").items():
            self.counted((*here, place))
            if own == ABSENT:
                special[place] = None
            else:
                known = f"must be a map of fields, or {ABSENT}"
                own = self.map_at(own, (*here, place), known)
                special[place] = self.settings(kind, own, (*here, place), may_remove=True)
        return ClusterItem(self.settings(kind, fields, path, may_remove=False), special)

    def settings(
        self, kind: ItemKind, fields: Mapping[str, object], path: KeyPath, *, may_remove: bool
    ) -> ItemSettings:
        """Return checked values; ``may_remove``: a field that is null is not there."""
        if kind is ItemKind.RULES:
            return {
                resource: None
                if rule is None and may_remove
                else self.rule(resource, rule, (*path, resource))
                for resource, rule in fields.items()
            }
        checks = FIELDS[kind]
        if kind is ItemKind.USERS and "password" in fields:
            raise self.tree.wrong(
                (*path, "password"),
                "must not be in the file: write `passwordEnv: NAME`, and put the password of a new"
                " user into that environment variable",
            )
        self.known(fields, path, checks, "field")
        return {
            field: None
            if value is None and may_remove
            else self.checked(checks[field], value, (*path, field))
            for field, value in fields.items()
        }

    def rule(self, resource: str, value: object, path: KeyPath) -> ItemSettings:
        if (complaint := resource_complaint(resource)) is not None:
            raise self.tree.wrong(path, complaint)
        rule = self.map_at(value, path, "must be a map of actions, sourceIps and decision")
        self.known(rule, path, RULE_FIELDS, "field")
        for field in RULE_FIELDS:
            if field not in rule and field not in RULE_DEFAULTS:
                raise self.tree.wrong(path, f"has no {field}; add it")
        return {
            **RULE_DEFAULTS,
            **{
                field: self.checked(RULE_FIELDS[field], rule[field], (*path, field))
                for field in RULE_FIELDS
                if field in rule
            },
        }

    def offsets(self, value: object) -> dict[str, ClusterItem]:
        """Return the items ``topic@group`` of group → topic → broker → queue → offset."""
        path = (ItemKind.OFFSETS.value,)
        items: dict[str, ClusterItem] = {}
        for group, topics in self.map_at(value, path, "must be a map of groups").items():
            at_group = (*path, group)
            if (complaint := name_complaint(ItemKind.GROUPS, group)) is not None:
                raise self.tree.wrong(at_group, f": {complaint}")
            for topic, brokers in self.map_at(topics, at_group, "must be a map of topics").items():
                at_topic = (*at_group, topic)
                if (complaint := name_complaint(ItemKind.TOPICS, topic)) is not None:
                    raise self.tree.wrong(at_topic, f": {complaint}")
                places = self.map_at(brokers, at_topic, "must be a map of brokers")
                special = {
                    place: self.queues(queues, (*at_topic, place))
                    for place, queues in places.items()
                }
                items[f"{topic}@{group}"] = ClusterItem(None, special)
        return items

    def queues(self, value: object, path: KeyPath) -> dict[str, int]:
        found: dict[str, int] = {}
        for queue, offset in self.map_at(value, path, "must be a map of queues").items():
            here = (*path, queue)
            self.counted(here)
            if not queue.isdecimal() or int(queue) > QUEUES_MAX:
                raise self.tree.wrong(here, f"must be the number of a queue, 0 to {QUEUES_MAX}")
            found[str(int(queue))] = self.checked(whole_number(0, OFFSET_MAX), offset, here)
        return found

    def map_at(self, value: object, path: KeyPath, what: str) -> Mapping[str, object]:
        if not isinstance(value, dict):
            raise self.tree.wrong(path, what)
        return value

    def known(
        self, found: Mapping[str, object], path: KeyPath, names: Iterable[str], word: str
    ) -> None:
        choices = [name for name in names if name != IGNORED]
        if word == "field" and path and SPECIAL not in path:
            choices.append(SPECIAL)
        for name in found:
            if name in choices or (name == IGNORED and not path):
                continue
            near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
            hint = f"the nearest is {near[0]}" if near else f"use {', '.join(choices)}"
            raise self.tree.wrong((*path, name), f"is no {word}; {hint}")

    def checked(self, check: Check, value: object, path: KeyPath) -> Any:
        try:
            return check(value)
        except ValueError as error:
            raise self.tree.wrong(path, f"is {value!r:.60}, and {error}") from None

    def counted(self, path: KeyPath) -> None:
        self.count += 1
        if self.count > ITEMS_MAX:
            raise self.tree.wrong(
                path, f"is item {self.count}, and {ITEMS_MAX} is the limit; divide the file"
            )


def root_of(document: ClusterDocument) -> dict[str, object]:
    """Return the tree of a document, in a stable order."""
    root: dict[str, object] = {
        "format": FORMAT,
        "cluster": document.cluster,
        "brokers": list(document.brokers),
    }
    if document.missing:
        root["missing"] = list(document.missing)
    for kind in ItemKind:
        items = document.sections.get(kind)
        if items is None:
            continue
        if kind is ItemKind.OFFSETS:
            root[kind.value] = _offsets_tree(items)
        else:
            root[kind.value] = {name: _item_tree(kind, items[name]) for name in sorted(items)}
    return root


def _item_tree(kind: ItemKind, item: ClusterItem) -> dict[str, object]:
    tree = _ordered(kind, item.common or {})
    if item.special:
        tree[SPECIAL] = {
            place: ABSENT if own is None else _ordered(kind, own)
            for place, own in sorted(item.special.items())
        }
    return tree


def _ordered(kind: ItemKind, settings: ItemSettings) -> dict[str, object]:
    """Return fields in the order of their declaration, rules in that of their resources."""
    if kind is not ItemKind.RULES:
        return {field: settings[field] for field in FIELDS[kind] if field in settings}
    return {
        resource: None
        if settings[resource] is None
        else {field: settings[resource][field] for field in RULE_FIELDS}
        for resource in sorted(settings)
    }


def _offsets_tree(items: Mapping[str, ClusterItem]) -> dict[str, object]:
    tree: dict[str, Any] = {}
    # Sorted by group, then by topic.
    for name in sorted(items, key=lambda name: name.split("@")[::-1]):
        topic, _, group = name.partition("@")
        tree.setdefault(group, {})[topic] = {
            place: {int(queue): own[queue] for queue in sorted(own, key=int)}
            for place, own in sorted(items[name].special.items())
            if own is not None
        }
    return tree
