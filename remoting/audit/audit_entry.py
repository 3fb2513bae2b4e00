"""One entry of the audit log, and its line of JSON. PURE.

Only names that a header class has under one of ``NAMED`` are written, so no body, message or
password can get into a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import attrs

from triomq.remoting.access.resources import Need

TEXT_MAX = 256
"""Characters of a text of the peer, so that no request makes a long line."""
RESOURCES_MAX = 20
NAMED = {
    "topic": "topic",
    "group": "group",
    "consumer_group": "consumerGroup",
    "src_group": "srcGroup",
    "dest_group": "destGroup",
    "username": "username",
    "subject": "subject",
    "policy_type": "policyType",
    "resource": "resource",
    "namespace": "namespace",
    "key": "key",
    "broker_name": "brokerName",
    "broker_addr": "brokerAddr",
}
"""Attribute of header objects -> its name in a line. No entry may name a secret."""
ONLY_WITH_NAMESPACE = "key"
"""The key of a key-value entry; elsewhere it is the key of a message."""


def clipped(text: str) -> str:
    """Return a text of a peer, or its beginning: entries wait in memory."""
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


@attrs.frozen(kw_only=True)
class AuditEntry:
    """What was decided about one request.

    ``user``: whose signature was verified; None for nobody. ``claimed``: the known user whose
    signature was false. ``what``: request code, gRPC method or HTTP path.
    """

    door: str
    what: str
    code: int | None = None
    peer: str
    user: str | None = None
    claimed: str | None = None
    resources: tuple[str, ...] = ()
    names: Mapping[str, str] = attrs.field(factory=dict)
    allowed: bool
    why: str = attrs.field(converter=clipped)

    def line(self, seconds: float, server: str) -> bytes:
        """Return the line, with its end. *seconds*: of the wall clock."""
        fields: dict[str, object] = {
            "time": time_text(seconds),
            "server": server,
            "door": self.door,
            "from": self.peer,
            "user": self.user,
            "claimed": self.claimed,
            "what": self.what,
            "code": self.code,
            "resources": self.resources,
            "names": self.names,
            "allowed": self.allowed,
            "why": self.why,
        }
        kept = {
            name: value
            for name, value in fields.items()
            if name in ("user", "allowed") or value not in (None, (), {})
        }
        return json.dumps(kept).encode() + b"\n"


def time_text(seconds: float) -> str:
    """Return a time as the logs write it: ISO 8601, UTC."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def names_of(header: object) -> Mapping[str, str]:
    """Return what a request names, by its header object; None has nothing."""
    found = {}
    for attribute, name in NAMED.items():
        text = getattr(header, attribute, None)
        if isinstance(text, str):
            found[name] = clipped(text)
    if "namespace" not in found:
        found.pop(ONLY_WITH_NAMESPACE, None)
    return found


def resource_texts(needs: Iterable[Need]) -> tuple[str, ...]:
    """Return needs as ``Topic:orders Pub``; one of several actions is enough: ``Sub|Get``."""
    texts: list[str] = []
    for need in needs:
        if len(texts) == RESOURCES_MAX:
            texts.append("…")
            break
        actions = "|".join(action.text for action in need.actions)
        texts.append(f"{clipped(str(need.resource))} {actions}")
    return tuple(texts)
