"""ControllerModeSettings: a broker whose controllers decide whether it is the master."""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import ADDRESSES, flag, number, setting


@attrs.frozen(kw_only=True)
class ControllerModeSettings:
    """The controllers, and how often this broker speaks with them."""

    enabled: bool = flag(
        "enableControllerMode",
        False,
        "a controller gives this broker its id and its role, and another master when that one dies;"
        " brokerId and brokerRole are not read",
    )
    addresses: tuple[str, ...] = setting(
        "controllerAddr", ADDRESSES, (), "all controllers: host:port, separated by ;"
    )
    poll_ms: int = number(
        "syncBrokerMetadataPeriod",
        1_000,
        "with enableControllerMode: how often the controllers are asked for master and set (ms)",
    )
    heartbeat_timeout_ms: int = number(
        "controllerHeartBeatTimeoutMills",
        10_000,
        "silence after which the controllers elect another master (ms); after four fifths of it a"
        " master that hears neither controllers nor slaves takes no messages",
        low=1_000,
    )
    priority: int = number(
        "brokerElectionPriority",
        2**31 - 1,
        "of equal candidates the one with the smallest number becomes master",
        low=0,
        high=2**31 - 1,
    )

    @property
    def lease_seconds(self) -> float:
        """Return how long a master goes on after the last answer of controllers and members."""
        return 0.8 * self.heartbeat_timeout_ms / 1000
