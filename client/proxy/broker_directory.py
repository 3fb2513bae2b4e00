"""Where brokers are, by their names: what routes said last, and a name server's list. PURE."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import MASTER_ID, BrokerData


@attrs.define(eq=False)
class BrokerDirectory:
    """The brokers of all clusters of the name servers. A broker name is unique among them."""

    _brokers: dict[str, BrokerData] = attrs.field(factory=dict, init=False)

    def note_route(self, brokers: Iterable[BrokerData]) -> None:
        """Take the brokers of a route: the newest addresses win."""
        for data in brokers:
            self._brokers[data.broker_name] = data

    def note_all(self, table: ClusterTable) -> None:
        """Take the list of all brokers (106); others are forgotten.

        The list has no acting masters. A slave that a route names as master stays so while the
        list has it, and no master of that name.
        """
        found = {}
        for name, data in table.broker_addr_table.items():
            acting = self.master(name)
            if MASTER_ID not in data.broker_addrs and acting in data.broker_addrs.values():
                assert acting is not None
                data = attrs.evolve(data, broker_addrs={**data.broker_addrs, MASTER_ID: acting})
            found[name] = data
        self._brokers = found

    def __contains__(self, name: object) -> bool:
        return name in self._brokers

    def __len__(self) -> int:
        return len(self._brokers)

    def master(self, name: str) -> str | None:
        """Return the address of a broker's master, None without one."""
        data = self._brokers.get(name)
        return data.broker_addrs.get(MASTER_ID) if data is not None else None

    def masters(self, cluster: str) -> list[str]:
        """Return the addresses of all masters, those of a cluster first; otherwise by name."""
        known = sorted(self._brokers.values(), key=lambda data: data.broker_name)
        known.sort(key=lambda data: data.cluster != cluster)
        return [data.broker_addrs[MASTER_ID] for data in known if MASTER_ID in data.broker_addrs]

    def name_at(self, address: str) -> str | None:
        """Return the name of the broker at an address."""
        for name, data in self._brokers.items():
            if address in data.broker_addrs.values():
                return name
        return None
