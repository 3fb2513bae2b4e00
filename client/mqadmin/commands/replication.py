"""Commands about replication: haStatus, resetMasterFlushOffset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.documents import members_of
from triomq.client.admin.times import seconds_text
from triomq.client.mqadmin.core.command import INTERVAL, AdminCommand, Effect
from triomq.client.mqadmin.core.places import MASTERS, ask_each, beside_missing, chosen_brokers
from triomq.client.mqadmin.core.result import Columns, Document, Result, Table, answered, table_of
from triomq.remoting.protocol.bodies.cluster import HaStatus
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import ResetMasterFlushOffsetHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


SLAVE_FIELDS = ("slaveAckOffset", "diff", "transferredByteInSecond", "inSync", "transferFromWhere")


def ha_document(status: HaStatus) -> dict[str, object]:
    """Return the state of a master with its slaves, or of a slave."""
    if not status.master:
        client = status.client
        return {
            "master": False,
            "masterAddr": client.master_address,
            "commitLogMaxOffset": client.max_offset,
            **members_of(client, "transferredByteInSecond", "lastReadTimestamp"),
            **members_of(client, "lastWriteTimestamp", "masterFlushOffset"),
        }
    return {
        "master": True,
        "masterCommitLogMaxOffset": status.master_log_max_offset,
        "slaveNum": len(status.connections),
        "inSyncSlaveNum": status.in_sync_slave_count,
        "slaves": [
            {"slaveAddr": slave.address, **members_of(slave, *SLAVE_FIELDS)}
            for slave in status.connections
        ],
    }


SLAVE_COLUMNS: Columns = {
    "SlaveAddr": "slaveAddr",
    ">SlaveAckOffset": "slaveAckOffset",
    ">Diff": "diff",
    ">TransferSpeed(KB/s)": lambda slave: f"{slave['transferredByteInSecond'] / 1024:.2f}",
    "Status": lambda slave: "OK" if slave["inSync"] else "Fall Behind",
    ">TransferFromWhere": "transferFromWhere",
}


def ha_blocks(address: str, known: Document) -> list[Table | str]:
    """Return the state of one broker as RocketMQ's mqadmin prints it."""
    if not known["master"]:
        return [
            (
                f"#MasterAddr\t{known['masterAddr']}\n"
                f"#CommitLogMaxOffset\t{known['commitLogMaxOffset']}\n"
                f"#TransferSpeed(KB/s)\t{known['transferredByteInSecond'] / 1024:.2f}\n"
                f"#LastReadTime\t{seconds_text(known['lastReadTimestamp'])}\n"
                f"#LastWriteTime\t{seconds_text(known['lastWriteTimestamp'])}\n"
                f"#MasterFlushOffset\t{known['masterFlushOffset']}"
            )
        ]
    head = (
        f"#MasterAddr\t{address}\n#MasterCommitLogMaxOffset\t{known['masterCommitLogMaxOffset']}\n"
        f"#SlaveNum\t{known['slaveNum']}\n#InSyncSlaveNum\t{known['inSyncSlaveNum']}"
    )
    return [head, table_of(known["slaves"], SLAVE_COLUMNS)]


async def ha_status(admin: Admin, options: Values) -> Result:
    addresses = await chosen_brokers(admin, options)
    answers = await beside_missing(
        admin, options, await ask_each(admin, addresses, RequestCode.GET_BROKER_HA_STATUS)
    )
    known = {
        address: ha_document(read_body(HaStatus, answer))
        for address, answer in answers.values.items()
    }
    blocks = [block for address in known for block in ha_blocks(address, known[address])]
    blocks += [f"#MasterAddr\t{address}: no answer" for address in answers.failures]
    return answered(answers, {"brokers": known}, blocks)


async def reset_flush_offset(admin: Admin, options: Values) -> Result:
    address, offset = options.maybe_text("brokerAddr"), options.maybe_number("offset")
    if address is None or offset is None:
        raise UsageError("-b/--brokerAddr and -o/--offset are needed")
    header = ResetMasterFlushOffsetHeader(master_flush_offset=offset)
    await admin.ask(address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
    return Result(
        document={"broker": address, "masterFlushOffset": offset},
        blocks=[f"reset master flush offset to {offset} success"],
    )


COMMANDS = (
    AdminCommand("haStatus", ha_status).with_options(*MASTERS, INTERVAL),
    AdminCommand("resetMasterFlushOffset", reset_flush_offset, effect=Effect.CHANGES).with_options(
        Option("-b, --brokerAddr ADDRESS", "the slave, host:port"),
        Option("-o, --offset OFFSET", "how far its master has flushed", whole(0)),
    ),
)
