"""Attributes of topics and groups: the known keys, their values, and how a change is written.

A change is ``+key=value,-key``. Errors are ValueError with the words of a Java broker.
Source: common/attribute/AttributeUtil.java, AttributeParser.java, common/TopicAttributes.java.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Attribute:
    """One known key. ``values``: those that it takes; None: an integer of at least -1."""

    values: frozenset[str] | None
    changeable: bool

    def verify(self, key: str, value: str) -> None:
        """Check a value. Raises: ValueError."""
        if self.values is not None:
            if value not in self.values:
                raise ValueError(f"value is not in set: [{', '.join(sorted(self.values))}]")
        elif not value.lstrip("-").isdigit() or int(value) < -1:
            raise ValueError(f"value is not in range(-1, {2**63 - 1})")


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(frozenset({"BatchCQ", "SimpleCQ"}), changeable=False),
    "cleanup.policy": Attribute(frozenset({"DELETE", "COMPACTION"}), changeable=False),
    "message.type": Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
        changeable=True,
    ),
    "reserve.time": Attribute(None, changeable=True),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}


def parse_attribute_changes(text: str) -> dict[str, str]:
    """Parse ``+a=1,-b`` into ``{"+a": "1", "-b": ""}``. Raises: ValueError."""
    changes: dict[str, str] = {}
    for item in text.split(",") if text else []:
        key, equals, value = item.partition("=")
        if equals and not key.startswith("+"):
            raise ValueError("add/alter attribute format is wrong: " + key)
        if not equals and not key.startswith("-"):
            raise ValueError("delete attribute format is wrong: " + key)
        if key in changes:
            raise ValueError("key duplication: " + key)
        changes[key] = value
    return changes


def alter_attributes(
    known: Mapping[str, Attribute],
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    create: bool,
) -> dict[str, str]:
    """Return the attributes after the changes. Raises: ValueError.

    Keys of ``changes`` carry their sign, those of the result do not.
    """
    result = dict(current)
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-"):
            raise ValueError("wrong format key: " + signed)
        if not key or "+" in key or "-" in key:
            raise ValueError("kv string format wrong.")
        if key in seen:
            raise ValueError("alter duplication key. key: " + key)
        seen.add(key)
        if create and sign == "-":
            raise ValueError("only add attribute is supported while creating topic. key: " + key)
        if sign == "-" and key not in current:
            raise ValueError("attempt to delete a nonexistent key: " + key)
        attribute = known.get(key)
        if attribute is None:
            raise ValueError("unsupported key: " + key)
        if not create and not attribute.changeable:
            raise ValueError("attempt to update an unchangeable attribute. key: " + key)
        if sign == "-":
            del result[key]
        else:
            attribute.verify(key, value)
            result[key] = value
    if result.get("cleanup.policy") == "COMPACTION" and result.get("queue.type") == "BatchCQ":
        raise ValueError(
            "cleanup.policy=COMPACTION does not go with queue.type=BatchCQ: a batch is one record"
            " there, and has no key of its own; use queue.type=SimpleCQ"
        )
    return result
