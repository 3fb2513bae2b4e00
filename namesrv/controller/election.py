"""Who should be the master of a group, if anybody. Pure.

Source: controller/…/elect/impl/DefaultElectPolicy.java, whose comparator overflows.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.namesrv.controller.commands import Elect
from triomq.namesrv.controller.liveness import Sighting
from triomq.namesrv.controller.state import Group
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode as Code


@attrs.frozen(kw_only=True)
class Question:
    """What an election depends on.

    ``living``: the brokers of the group that are alive. ``master_lives``: whether the present
    master is. ``asker``: the broker that asked, None if the controller did. ``designated``: whether
    it must be this one.
    """

    broker_name: str
    group: Group
    living: Mapping[int, Sighting]
    master_lives: bool
    asker: int | None = None
    designated: bool = False
    unclean: bool = False


def choose(asked: Question) -> Elect:
    """Return the command that makes somebody master.

    Raises: Rejected if the present master should stay, or nobody can be master.
    """
    group = asked.group
    if group.never_elected and asked.asker is not None:
        return _elect(asked, asked.asker)
    if asked.master_lives and (not asked.designated or asked.asker == group.master):
        raise Rejected(
            Code.CONTROLLER_MASTER_STILL_EXIST,
            f"The old master {group.master} is still alive, not need to elect new master for broker"
            f" {asked.broker_name}",
        )
    candidates = {key for key in asked.living if not asked.designated or key == asked.asker}
    best = _best(asked, candidates & group.sync_set)
    if best is not None:
        return _elect(asked, best)
    best = _best(asked, candidates) if asked.unclean else None
    if best is None:
        raise Rejected(Code.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master")
    return _elect(asked, best, unclean=True)


def _best(asked: Question, ids: set[int]) -> int | None:
    """Return the broker with the newest epoch, the longest log and the smallest priority."""

    def order(broker_id: int) -> tuple[int, int, int, int]:
        seen = asked.living[broker_id]
        return (-seen.epoch, -seen.max_offset, seen.priority, broker_id)

    return min(ids, key=order, default=None)


def _elect(asked: Question, broker_id: int, *, unclean: bool = False) -> Elect:
    return Elect(
        broker_name=asked.broker_name,
        broker_id=broker_id,
        master_epoch=asked.group.master_epoch,
        unclean=unclean,
    )
