"""The settings of a controller, under the names of Java's ControllerConfig."""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

from pathlib import Path

import attrs

from triomq.remoting.core.address import parse_address
from triomq.remoting.core.settings import (
    PATH,
    ConfigError,
    flag,
    number,
    optional_text,
    setting,
)
from triomq.remoting.server.config import PoolConfig


@attrs.frozen(kw_only=True)
class ControllerSettings:
    """All settings of one controller."""

    enabled: bool = flag(
        "enableControllerInNamesrv",
        False,
        "run a controller, which elects the masters of brokers in controller mode",
    )
    group_name: str = optional_text(
        "controllerDLegerGroup", "name of the controllers together, which tools print"
    )
    peers: str = optional_text(
        "controllerDLegerPeers",
        "the controllers: id-host:port, separated by ;. This version runs one",
    )
    self_id: str = optional_text(
        "controllerDLegerSelfId", "this controller's id in controllerDLegerPeers"
    )
    store_path: Path = setting(
        "controllerStorePath",
        PATH,
        attrs.Factory(lambda: Path.home() / "DLedgerController"),
        "folder of controller.json: ids, epochs and masters",
        default_text="~/DLedgerController",
    )
    unclean: bool = flag(
        "enableElectUncleanMaster",
        False,
        "without a living member of the sync state set, elect another broker: what only the members"
        " have is lost",
    )
    notify: bool = flag(
        "notifyBrokerRoleChanged",
        True,
        "tell the brokers of a group at once that they have a new master; they also ask every 5 s",
    )
    workers: int = number(
        "controllerThreadPoolNums", 16, "worker tasks for requests to the controller", high=1024
    )
    queue_requests_max: int = number(
        "controllerRequestThreadPoolQueueCapacity",
        50_000,
        "requests to the controller that may wait; one more is refused as busy",
    )
    groups_max: int = number(
        "controllerGroupsMax",
        1_000,
        "broker groups that may have ids; the file of all is written at each change (1,000: 10 ms)",
        high=10_000,
        own=True,
    )
    replicas_max: int = number(
        "controllerReplicasMax", 100, "brokers of one group that may have ids", own=True
    )

    def pool(self) -> PoolConfig:
        return PoolConfig(workers=self.workers, queue_requests_max=self.queue_requests_max)

    def own_peer(self) -> Peer:
        """Return this controller as the settings name it.

        Raises: ConfigError if they do not, or name several controllers.
        """
        example = "n0-127.0.0.1:9878"
        found = [_peer(text) for text in self.peers.split(";") if text.strip()]
        if not found:
            raise ConfigError(
                "",
                "enableControllerInNamesrv=true without controllerDLegerPeers",
                f"write controllerDLegerPeers={example} with this machine's address",
            )
        if len(found) > 1:
            raise ConfigError(
                "",
                f"controllerDLegerPeers={self.peers}: this version runs one controller",
                f"name one, like {example}, in the file of one name server",
            )
        if found[0].id != self.self_id:
            raise ConfigError(
                "",
                f"controllerDLegerSelfId={self.self_id} is not in"
                f" controllerDLegerPeers={self.peers}",
                f"write controllerDLegerSelfId={found[0].id}",
            )
        return found[0]


@attrs.frozen
class Peer:
    """A controller: ``address`` is ``host:port``, where it listens."""

    id: str
    address: str

    @property
    def port(self) -> int:
        return parse_address(self.address)[1]


def _peer(text: str) -> Peer:
    name, dash, address = text.strip().partition("-")
    try:
        if not (name and dash):
            raise ValueError("no id")
        parse_address(address)
    except ValueError:
        raise ConfigError(
            "",
            f"controllerDLegerPeers={text.strip()}: not id-host:port",
            "write n0-127.0.0.1:9878 with the controller's id and address",
        ) from None
    return Peer(name, address)
