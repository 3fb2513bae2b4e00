"""Commands about controllers, and about what they decide: masters, sync state sets, ids.

getControllerMetaData, getSyncStateSet, electMaster, cleanBrokerMetadata, getBrokerEpoch, and our
addController, removeController.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body, read_header
from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.controllers import groups_at, leader_of, metadata_at
from triomq.client.admin.documents import members_of
from triomq.client.admin.draining import move_master
from triomq.client.mqadmin.core.command import INTERVAL, AdminCommand, Effect
from triomq.client.mqadmin.core.places import CONTROLLERS, ask_each, chosen_controllers
from triomq.client.mqadmin.core.result import Document, Result, Row, answered
from triomq.remoting.protocol.bodies.controller import (
    EpochEntries,
    GroupReplicas,
    ReplicaState,
)
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.controller import (
    ChangeControllersHeader,
    CleanBrokerDataHeader,
    ControllerMetadataHeader,
    ElectMasterHeader,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

BROKER_NAME = Option("-bn, --brokerName NAME", "name of the group", required=True)


async def controller_metadata(admin: Admin, options: Values) -> Result:
    answers = await admin.for_each(
        chosen_controllers(options), lambda address: metadata_at(admin, address)
    )
    document: Document = {}
    blocks = []
    for address, found in answers.some().items():
        peers = [peer for peer in (found.peers or "").split(";") if peer]
        followers = followers_of(found)
        document[address] = {
            "group": found.group,
            "controllerLeaderId": found.controller_leader_id,
            "controllerLeaderAddress": found.controller_leader_address,
            "isLeader": bool(found.is_leader),
            "peers": peers,
            "followers": followers,
        }
        lines = [
            f"#ControllerGroup\t{found.group}",
            f"#ControllerLeaderId\t{found.controller_leader_id}",
            f"#ControllerLeaderAddress\t{found.controller_leader_address}",
            *(f"#Peer:\t{peer}{how_far(followers, peer)}" for peer in peers),
        ]
        blocks.append("\n".join(lines))
    return answered(answers, {"controllers": document}, blocks)


def followers_of(found: ControllerMetadataHeader) -> dict[str, dict[str, object]]:
    """Return what a leader says of the other controllers, by id; empty from RocketMQ's."""
    parts = [part.split(":") for part in (found.followers or "").split(";") if part]
    return {
        part[0]: {"lacking": int(part[1]), "votes": "learner" not in part[2:]}
        for part in parts
        if len(part) > 1 and part[1].isdecimal()
    }


def how_far(followers: Mapping[str, Mapping[str, object]], peer: str) -> str:
    """Return what is to be said of a controller that lacks entries, or does not vote."""
    follower = followers.get(peer.partition(":")[0], {"lacking": 0, "votes": True})
    lacking = f"\tlacks {follower['lacking']} entries" if follower["lacking"] else ""
    return lacking + ("" if follower["votes"] else "\tdoes not vote yet")


async def names_of(admin: Admin, options: Values) -> list[str]:
    """Return the name of --brokerName, or those of --clusterName. Raises: UsageError."""
    name, cluster = options.maybe_text("brokerName"), options.maybe_text("clusterName")
    if (name is None) == (cluster is None):
        raise UsageError("give exactly one of -b/--brokerName and -c/--clusterName")
    if name is not None:
        return [name]
    return sorted({broker.name for broker in await admin.brokers(cluster)})


GROUP_FIELDS = ("masterBrokerId", "masterAddress", "masterEpoch", "syncStateSetEpoch")
REPLICA_FIELDS = ("brokerId", "brokerAddress", "alive")


def replica_text(replica: ReplicaState) -> str:
    return (
        f"ReplicaIdentity{{brokerName='{replica.broker_name}', brokerId={replica.broker_id},"
        f" brokerAddress='{replica.broker_address}', alive={str(replica.alive).lower()}}}"
    )


def replicas_block(name: str, found: GroupReplicas) -> str:
    """Return the replicas of a group as RocketMQ's mqadmin prints them."""
    lines = [
        f"#brokerName\t{name}",
        f"#MasterBrokerId\t{found.master_broker_id}",
        f"#MasterAddr\t{found.master_address}",
        f"#MasterEpoch\t{found.master_epoch}",
        f"#SyncStateSetEpoch\t{found.sync_state_set_epoch}",
        f"#SyncStateSetNums\t{len(found.in_sync_replicas)}",
        *(f"InSyncReplica:\t{replica_text(one)}" for one in found.in_sync_replicas),
        *(f"NotInSyncReplica:\t{replica_text(one)}" for one in found.not_in_sync_replicas),
    ]
    return "\n".join(lines)


async def sync_state_set(admin: Admin, options: Values) -> Result:
    names = await names_of(admin, options)
    leader = await leader_of(admin, chosen_controllers(options))
    found = await groups_at(admin, leader, names)
    document = {
        name: {
            **members_of(group, *GROUP_FIELDS),
            "inSyncReplicas": [members_of(one, *REPLICA_FIELDS) for one in group.in_sync_replicas],
            "notInSyncReplicas": [
                members_of(one, *REPLICA_FIELDS) for one in group.not_in_sync_replicas
            ],
        }
        for name, group in found.items()
    }
    return Result(
        document={"groups": document},
        blocks=[replicas_block(name, group) for name, group in found.items()],
        notes=[
            f"{name}: the controllers know no such group" for name in names if name not in found
        ],
    )


async def elect_master(admin: Admin, options: Values) -> Result:
    leader = await leader_of(admin, chosen_controllers(options))
    cluster, name = options.text("clusterName"), options.text("brokerName")
    before = (await groups_at(admin, leader, [name])).get(name, GroupReplicas())
    header = ElectMasterHeader(cluster, name, options.number("brokerId"), True)
    await move_master(admin, leader, before, header)
    elected = (await groups_at(admin, leader, [name])).get(name, before)
    replicas = elected.in_sync_replicas + elected.not_in_sync_replicas
    addresses = dict(sorted((one.broker_id, one.broker_address) for one in replicas))
    lines = [
        f"#ClusterName\t{cluster}",
        f"#BrokerName\t{name}",
        f"#BrokerMasterAddr\t{elected.master_address}",
        f"#MasterEpoch\t{elected.master_epoch}",
        f"#SyncStateSetEpoch\t{elected.sync_state_set_epoch}",
        *(f"\t#Broker\t{broker_id}\t{address}" for broker_id, address in addresses.items()),
    ]
    return Result(
        document={
            "cluster": cluster,
            "brokerName": name,
            **members_of(elected, *GROUP_FIELDS),
            "members": {str(broker_id): address for broker_id, address in addresses.items()},
        },
        blocks=["\n".join(lines)],
    )


async def clean_broker_metadata(admin: Admin, options: Values) -> Result:
    leader = await leader_of(admin, chosen_controllers(options))
    name = options.text("brokerName")
    ids = options.maybe_text("brokerControllerIdsToClean")
    header = CleanBrokerDataHeader(
        name, options.maybe_text("clusterName"), ids, options.flag("cleanLivingBroker")
    )
    await admin.ask(leader, RequestCode.CLEAN_BROKER_DATA, header)
    return Result(
        document={"brokerName": name, "brokerIds": ids},
        blocks=[f"clear broker {name} metadata from controller success!"],
    )


async def add_controller(admin: Admin, options: Values) -> Result:
    controller_id, dash, address = options.text("controller").partition("-")
    if not (controller_id and dash and address):
        raise UsageError("write the controller as ID-HOST:PORT, like n3-10.0.0.8:9878")
    return await change_controllers(
        admin, options, ChangeControllersHeader("add", controller_id, address)
    )


async def remove_controller(admin: Admin, options: Values) -> Result:
    return await change_controllers(
        admin, options, ChangeControllersHeader("remove", options.text("id"))
    )


async def change_controllers(
    admin: Admin, options: Values, header: ChangeControllersHeader
) -> Result:
    leader = await leader_of(admin, chosen_controllers(options))
    answer = await admin.ask(leader, RequestCode.CHANGE_CONTROLLERS, header)
    found = read_header(ControllerMetadataHeader, answer).peers or ""
    peers = [peer for peer in found.split(";") if peer]
    done = "added" if header.change == "add" else "removed"
    return Result(
        document={"controllerId": header.controller_id, "change": header.change, "peers": peers},
        blocks=[
            "\n".join([f"{header.controller_id} is {done}", *(f"#Peer:\t{one}" for one in peers)])
        ],
    )


def epochs_document(found: EpochEntries) -> Row:
    last = len(found.epoch_list) - 1
    return {
        "cluster": found.cluster_name,
        **members_of(found, "brokerName", "brokerId"),
        "epochs": [
            {
                **members_of(entry, "epoch", "startOffset"),
                # The last epoch goes on; its end is that of the log, as in Java's output.
                "endOffset": found.max_offset if number == last else entry.end_offset,
            }
            for number, entry in enumerate(found.epoch_list)
        ],
    }


async def broker_epoch(admin: Admin, options: Values) -> Result:
    name, cluster = options.maybe_text("brokerName"), options.maybe_text("clusterName")
    if (name is None) == (cluster is None):
        raise UsageError("give exactly one of -b/--brokerName and -c/--clusterName")
    brokers = [one for one in await admin.brokers(cluster) if name in (None, one.name)]
    if not brokers:
        raise UsageError(f"no broker of {name or cluster} is registered at the name server")
    addresses = [broker.address for broker in brokers]
    answers = await ask_each(admin, addresses, RequestCode.GET_BROKER_EPOCH_CACHE)
    found = {
        address: epochs_document(read_body(EpochEntries, answer))
        for address, answer in answers.values.items()
    }
    blocks = []
    for address, known in found.items():
        lines = [
            f"#clusterName\t{known['cluster']}",
            f"#brokerName\t{known['brokerName']}",
            f"#brokerAddr\t{address}",
            f"#brokerId\t{known['brokerId']}",
            *(
                f"#Epoch: EpochEntry{{epoch={one['epoch']}, startOffset={one['startOffset']},"
                f" endOffset={one['endOffset']}}}"
                for one in known["epochs"]
            ),
        ]
        blocks.append("\n".join(lines))
    return answered(answers, {"brokers": found}, blocks)


COMMANDS = (
    AdminCommand("getControllerMetaData", controller_metadata).with_options(CONTROLLERS),
    AdminCommand("getSyncStateSet", sync_state_set).with_options(
        CONTROLLERS,
        Option("-b, --brokerName NAME", "one group"),
        Option("-c, --clusterName NAME", "all groups of a cluster"),
        INTERVAL,
    ),
    AdminCommand("electMaster", elect_master, effect=Effect.CHANGES).with_options(
        CONTROLLERS,
        Option("-b, --brokerId ID", "its id at the controllers", whole(1), required=True),
        BROKER_NAME,
        Option("-c, --clusterName NAME", "the cluster", required=True),
    ),
    AdminCommand(
        "cleanBrokerMetadata",
        clean_broker_metadata,
        effect=Effect.DESTROYS,
        loss="the ids of brokers at the controllers",
    ).with_options(
        CONTROLLERS,
        Option("-b, --brokerControllerIdsToClean IDS", "ids, '2;3'; without it all of them"),
        BROKER_NAME,
        Option("-c, --clusterName NAME", "the cluster"),
        Option("-l, --cleanLivingBroker", "also brokers that are alive"),
    ),
    AdminCommand("addController", add_controller, effect=Effect.CHANGES).with_options(
        CONTROLLERS,
        Option("CONTROLLER", "ID-HOST:PORT, as controllerDLegerPeers has it", required=True),
    ),
    AdminCommand("removeController", remove_controller, effect=Effect.CHANGES).with_options(
        CONTROLLERS, Option("ID", "the controller's id", required=True)
    ),
    AdminCommand("getBrokerEpoch", broker_epoch).with_options(
        Option("-b, --brokerName NAME", "the brokers of one name"),
        Option("-c, --clusterName NAME", "all brokers of a cluster"),
        INTERVAL,
    ),
)
