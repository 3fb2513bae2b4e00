"""Headers between brokers and the controller that elects masters: 1001 to 1006, 1008, 1011 to 1013.

Source: remoting/…/header/controller/*.java, NotifyBrokerRoleChangedRequestHeader.java.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class AlterSyncStateSetHeader:
    """A master reports the replicas that keep up (1001); the body has the set."""

    broker_name: str | None = wire("brokerName", default=None)
    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)
    master_epoch: int | None = wire("masterEpoch", default=None)
    invoke_timestamp: int = wire("invokeTime", default=0, bits=64)


@header
class AlterSyncStateSetResponseHeader:
    new_sync_state_set_epoch: int = wire("newSyncStateSetEpoch", default=0)


@header
class ElectMasterHeader:
    """Elect a master (1002), the given one if ``designated``."""

    cluster_name: str = wire("clusterName")
    broker_name: str = wire("brokerName")
    broker_id: int = wire("brokerId", bits=64)
    designated: bool = wire("designateElect")
    invoke_timestamp: int | None = wire("invokeTime", default=None, bits=64)


@header
class NewMasterHeader:
    """The answer to 1002, and the controller's word to a replica (1008, the body has the set)."""

    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)
    master_address: str | None = wire("masterAddress", default=None)
    master_epoch: int | None = wire("masterEpoch", default=None)
    sync_state_set_epoch: int | None = wire("syncStateSetEpoch", default=None)


@header
class RegisterWithControllerHeader:
    """A replica with its id reports its address (1003)."""

    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    broker_id: int | None = wire("brokerId", default=None, bits=64)
    broker_address: str | None = wire("brokerAddress", default=None)
    invoke_timestamp: int = wire("invokeTime", default=0, bits=64)


@header
class RegisterWithControllerResponseHeader:
    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)
    master_address: str | None = wire("masterAddress", default=None)
    master_epoch: int | None = wire("masterEpoch", default=None)
    sync_state_set_epoch: int | None = wire("syncStateSetEpoch", default=None)


@header
class ReplicaStateHeader:
    """Ask for the master of a broker name (1004)."""

    broker_name: str | None = wire("brokerName", default=None)


@header
class ReplicaStateResponseHeader:
    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)
    master_address: str | None = wire("masterAddress", default=None)
    master_epoch: int | None = wire("masterEpoch", default=None)


@header
class ControllerMetadataResponseHeader:
    """The state of the controllers themselves (1005); ``peers`` is ``id:address;…``."""

    group: str | None = wire("group", default=None)
    leader_id: str | None = wire("controllerLeaderId", default=None)
    leader_address: str | None = wire("controllerLeaderAddress", default=None)
    is_leader: bool = wire("isLeader", default=False)
    peers: str | None = wire("peers", default=None)


@header
class CleanBrokerDataHeader:
    """Forget replicas (1011): those of ``broker_ids``, joined by ``;``, or all that are gone."""

    broker_name: str = wire("brokerName")
    cluster_name: str | None = wire("clusterName", default=None)
    broker_ids: str | None = wire("brokerControllerIdsToClean", default=None)
    clean_living: bool = wire("isCleanLivingBroker", default=False)
    invoke_timestamp: int = wire("invokeTime", default=0, bits=64)


@header
class BrokerOfClusterHeader:
    """Header of 1012, and of the response to 1013."""

    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)


@header
class NextBrokerIdResponseHeader:
    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    next_broker_id: int | None = wire("nextBrokerId", default=None, bits=64)


@header
class ApplyBrokerIdHeader:
    """Take an id (1013); the check code later proves that the same broker asks again."""

    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    applied_broker_id: int | None = wire("appliedBrokerId", default=None, bits=64)
    check_code: str | None = wire("registerCheckCode", default=None)
