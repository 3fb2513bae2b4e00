"""Compare a cluster file with a cluster: the steps that make the cluster as the file says. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from triomq.client.admin.cluster_files.items import ACCESS, ClusterDocument, ItemKind, ItemSettings

Present = Mapping[str, Mapping[ItemKind, Mapping[str, ItemSettings] | None]]
"""broker (``broker-a``, its slave ``broker-a:1``) → kind → name → settings; None: the broker keeps
no items of that kind
"""
SIGNS = {"create": "+", "update": "~", "delete": "-"}
NO_ACCESS_CONTROL = (
    "it keeps no users and rules: set authenticationMetadataProvider and"
    " authorizationMetadataProvider on it (RocketMQ from 5.3 on), or remove users and rules from"
    " the file"
)


@attrs.frozen(kw_only=True)
class ClusterStep:
    """One change at one broker."""

    place: str
    kind: ItemKind
    name: str
    before: ItemSettings | None
    """None: the item is not there"""
    after: ItemSettings | None
    """None: it shall not be there; otherwise with the present values of fields that the file does
    not name
    """

    @property
    def action(self) -> str:
        """Return ``create``, ``update`` or ``delete``."""
        return "create" if self.before is None else "delete" if self.after is None else "update"

    @property
    def subject(self) -> str:
        """Return the item as messages name it: ``topic orders``."""
        return f"{self.kind.word} {self.name}"

    @property
    def changed(self) -> list[str]:
        """Return the names of the fields that change."""
        old, new = self.before or {}, self.after or {}
        return [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]

    @property
    def document(self) -> dict[str, object]:
        """Return the change as ``--json`` prints it: only fields that change."""
        return {
            "broker": self.place,
            "kind": self.kind.value,
            "name": self.name,
            "action": self.action,
            "before": self._side(self.before),
            "after": self._side(self.after),
        }

    def _side(self, values: ItemSettings | None) -> dict[str, object] | None:
        if values is None:
            return None
        return {key: values[key] for key in self.changed if key in values}

    @property
    def lines(self) -> list[str]:
        """Return a line for each field that goes, and for each that comes."""
        old, new = self.before or {}, self.after or {}
        lines = []
        for key in self.changed if self.after is not None else ():
            lines += [f"    - {key}: {_text(old[key])}"] if key in old else []
            lines += [f"    + {key}: {_text(new[key])}"] if key in new else []
        return lines


@attrs.frozen(kw_only=True)
class ClusterPlan:
    """The steps, and what they leave alone."""

    steps: Sequence[ClusterStep]
    unchanged: int
    """items of the file that are at their brokers as it says"""
    unnamed: int
    """items of the brokers that the file does not name, and that stay"""
    impossible: Mapping[str, str]
    """broker and kind → why nothing can be done there"""


def plan_of(document: ClusterDocument, present: Present, *, prune: bool) -> ClusterPlan:
    """Return what must be done so that the brokers of ``present`` are as the file says.

    ``prune``: also delete what the file does not name, of the kinds that it has. Offsets are never
    deleted.
    """
    steps: list[ClusterStep] = []
    unchanged = unnamed = 0
    impossible: dict[str, str] = {}
    for place, kinds in present.items():
        for kind, items in document.sections.items():
            if kind not in kinds:
                continue  # a slave has users and rules only
            known = kinds[kind]
            if known is None:
                wanted = any(item.at(place) is not None for item in items.values())
                if wanted and kind in ACCESS:
                    impossible[place] = NO_ACCESS_CONTROL
                continue
            may_delete = prune and kind is not ItemKind.OFFSETS
            for name, item in items.items():
                before, wish = known.get(name), item.at(place)
                if wish is None:
                    if before is not None and may_delete:
                        steps.append(_step(place, kind, name, before, None))
                    unnamed += (
                        before is not None and not may_delete and kind is not ItemKind.OFFSETS
                    )
                    continue
                own = kind is ItemKind.RULES and prune  # rules for other resources go, too
                after = dict(wish) if own else {**(before or {}), **wish}
                if kind is ItemKind.USERS and before is not None:
                    after.pop("passwordEnv", None)  # of a new user only
                step = _step(place, kind, name, before, after)
                if before is not None and not step.changed:
                    unchanged += 1
                else:
                    steps.append(step)
            if kind is ItemKind.OFFSETS:
                continue
            others = sorted(known.keys() - items.keys())
            if prune:
                steps += [_step(place, kind, name, known[name], None) for name in others]
            else:
                unnamed += len(others)
    order = {kind: number for number, kind in enumerate(ItemKind)}
    # What is deleted comes last, and rules before their users.
    steps.sort(
        key=lambda step: (
            (1, -order[step.kind]) if step.after is None else (0, order[step.kind]),
            step.name,
        )
    )
    return ClusterPlan(steps=steps, unchanged=unchanged, unnamed=unnamed, impossible=impossible)


def _step(
    place: str, kind: ItemKind, name: str, before: ItemSettings | None, after: ItemSettings | None
) -> ClusterStep:
    return ClusterStep(place=place, kind=kind, name=name, before=before, after=after)


def difference_lines(steps: Iterable[ClusterStep]) -> Iterator[str]:
    """Yield the text of ``cluster diff``; brokers with the same change share its lines."""
    shared: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for step in steps:
        key = (step.action, step.subject, tuple(step.lines))
        shared.setdefault(key, []).append(step.place)
    for (action, subject, lines), places in shared.items():
        yield f"{SIGNS[action]} {subject} at {', '.join(places)}"
        yield from lines


def summary(steps: Sequence[ClusterStep]) -> str:
    """Return the number of steps of each action."""
    counts = [
        f"{sum(step.action == action for step in steps)} to {action}"
        for action in ("create", "update", "delete")
    ]
    return ", ".join(counts)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
