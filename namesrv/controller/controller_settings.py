"""The settings of a controller, under the names of Java's ControllerConfig."""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.remoting.core.address import parse_address
from triomq.remoting.core.settings import PATH, ConfigError, flag, number, optional_text, setting
from triomq.remoting.server.config import PoolConfig

PEERS_MAX = 9


@attrs.frozen(kw_only=True)
class ControllerSettings:
    """All settings of one controller.

    enabled: run a controller, which elects the masters of brokers in controller mode
    group_name: name of the controllers together, which tools print
    peers: the controllers: id-host:port, separated by ;. Three go on when one of them is down
    self_id: this controller's id in controllerDLegerPeers
    store_path: folder of raft.log: ids, epochs and masters; each controller needs its own
    unclean: without a living member of the sync state set, elect another broker: what only the
        members have is lost
    notify: tell the brokers of a group at once that they have a new master; they also ask every 5 s
    workers: worker tasks for requests to the controller
    queue_requests_max: requests to the controller that may wait; one more is refused as busy
    groups_max: broker groups that may have ids; all are written once in 1,000 changes (1,000: 10
        ms)
    replicas_max: brokers of one group that may have ids
    """

    enabled: bool = flag("enableControllerInNamesrv", False)
    group_name: str = optional_text("controllerDLegerGroup")
    peers: str = optional_text("controllerDLegerPeers")
    self_id: str = optional_text("controllerDLegerSelfId")
    store_path: Path = setting(
        "controllerStorePath",
        PATH,
        attrs.Factory(lambda: Path.home() / "DLedgerController"),
        default_text="~/DLedgerController",
    )
    unclean: bool = flag("enableElectUncleanMaster", False)
    notify: bool = flag("notifyBrokerRoleChanged", True)
    workers: int = number("controllerThreadPoolNums", 16, high=1024)
    queue_requests_max: int = number("controllerRequestThreadPoolQueueCapacity", 50_000)
    groups_max: int = number("controllerGroupsMax", 1_000, high=10_000, own=True)
    replicas_max: int = number("controllerReplicasMax", 100, own=True)

    def pools(self) -> Mapping[str, PoolConfig]:
        """Return the pools of the server, by the names that the handler table uses."""
        queue = self.queue_requests_max
        return {
            "default": PoolConfig(workers=self.workers, queue_requests_max=queue),
            "prompt": PoolConfig(workers=1, queue_requests_max=queue),
        }

    def own_peer(self) -> Peer:
        """Return this controller as the settings name it. Raises: ConfigError if they do not."""
        peers = self.all_peers()
        own = next((peer for peer in peers if peer.id == self.self_id), None)
        if own is None:
            raise ConfigError(
                "",
                f"controllerDLegerSelfId={self.self_id} is not in"
                f" controllerDLegerPeers={self.peers}",
                "write controllerDLegerSelfId="
                + (peers[0].id if len(peers) == 1 else "the id of this controller there"),
            )
        return own

    def all_peers(self) -> tuple[Peer, ...]:
        """Return the controllers of the group, this one included. Raises: ConfigError."""
        example = "n0-127.0.0.1:9878"
        found = [read_peer(text) for text in self.peers.split(";") if text.strip()]
        if not found:
            raise ConfigError(
                "",
                "enableControllerInNamesrv=true without controllerDLegerPeers",
                f"write controllerDLegerPeers={example} with this machine's address",
            )
        if len({peer.id for peer in found}) < len(found) or (
            len({peer.address for peer in found}) < len(found)
        ):
            raise ConfigError(
                "",
                f"controllerDLegerPeers={self.peers}: an id or an address is there twice",
                "give each controller its own id and address",
            )
        if len(found) > PEERS_MAX:
            raise ConfigError(
                "",
                f"controllerDLegerPeers has {len(found)} controllers, {PEERS_MAX} are allowed",
                "name three, or five to go on when two are down: each change waits for a majority",
            )
        return tuple(found)


@attrs.frozen
class Peer:
    """A controller: ``address`` is ``host:port``, where it listens."""

    id: str
    address: str

    @property
    def port(self) -> int:
        return parse_address(self.address)[1]


def read_peer(text: str) -> Peer:
    """Return the controller of ``id-host:port``. Raises: ConfigError."""
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
