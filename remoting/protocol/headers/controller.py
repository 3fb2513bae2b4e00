"""Headers of controller mode: 1001 to 1004 and 1008 to 1013.

Requests of brokers and tools to a controller, and its notices to brokers. A heartbeat (904) is in
``route``. Epochs are compared, never counted: elections may skip some.

Source: remoting/…/header/controller/**/*.java, NotifyBrokerRoleChangedRequestHeader.java.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class AlterSyncStateSetHeader:
    """Header of 1001: the master proposes another set; ``invoke_time`` (ms) is of no use."""

    broker_name: str = wire("brokerName")
    master_broker_id: int = wire("masterBrokerId", bits=64)
    master_epoch: int = wire("masterEpoch")
    invoke_time: int | None = wire("invokeTime", default=None, bits=64)


@header
class AlterSyncStateSetResponseHeader:
    """Java also sends 0, or nothing, in the answer to a refused proposal."""

    new_sync_state_set_epoch: int | None = wire("newSyncStateSetEpoch", default=None)


@header
class ElectMasterHeader:
    """Header of 1002: a broker looks for a master, or a tool names one (``designate_elect``)."""

    cluster_name: str = wire("clusterName")
    broker_name: str = wire("brokerName")
    broker_id: int = wire("brokerId", bits=64)
    designate_elect: bool = wire("designateElect")
    invoke_time: int | None = wire("invokeTime", default=None, bits=64)


@header
class ElectMasterResponseHeader:
    """The master after the request; also with 2011, where it is the old one."""

    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)
    master_address: str | None = wire("masterAddress", default=None)
    master_epoch: int | None = wire("masterEpoch", default=None)
    sync_state_set_epoch: int | None = wire("syncStateSetEpoch", default=None)


@header
class RegisterToControllerHeader:
    """Header of 1003: a broker process has started, at this address."""

    cluster_name: str = wire("clusterName")
    broker_name: str = wire("brokerName")
    broker_id: int = wire("brokerId", bits=64)
    broker_address: str = wire("brokerAddress")
    invoke_time: int | None = wire("invokeTime", default=None, bits=64)


@header
class RegisterToControllerResponseHeader:
    """The last four only while the group has a living master."""

    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)
    master_address: str | None = wire("masterAddress", default=None)
    master_epoch: int | None = wire("masterEpoch", default=None)
    sync_state_set_epoch: int | None = wire("syncStateSetEpoch", default=None)


@header
class ReplicaInfoHeader:
    """Header of 1004."""

    broker_name: str = wire("brokerName")


@header
class ReplicaInfoResponseHeader:
    """Without a living master only ``master_epoch``; nothing if the group is unknown."""

    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)
    master_address: str | None = wire("masterAddress", default=None)
    master_epoch: int | None = wire("masterEpoch", default=None)


@header
class ControllerMetadataHeader:
    """Header of the answer to 1005. ``peers`` is ``n0:host:port;…``, as written by DLedger.

    ``followers``, which RocketMQ does not have: for each other controller ``n1:12``, which lacks 12
    entries of the log, with ``:learner`` if it does not vote; from the leader only.
    """

    group: str | None = wire("group", default=None)
    controller_leader_id: str | None = wire("controllerLeaderId", default=None)
    controller_leader_address: str | None = wire("controllerLeaderAddress", default=None)
    is_leader: bool | None = wire("isLeader", default=None)
    peers: str | None = wire("peers", default=None)
    followers: str | None = wire("followers", default=None)


@header
class ChangeControllersHeader:
    """Header of 19002, which RocketMQ does not have: ``change`` is ``add`` or ``remove``."""

    change: str = wire("change")
    controller_id: str = wire("controllerId")
    address: str | None = wire("address", default=None)


@header
class RoleChangedHeader:
    """Header of 1008, one-way to each living broker of a group."""

    master_address: str | None = wire("masterAddress", default=None)
    master_epoch: int | None = wire("masterEpoch", default=None)
    sync_state_set_epoch: int | None = wire("syncStateSetEpoch", default=None)
    master_broker_id: int | None = wire("masterBrokerId", default=None, bits=64)


@header
class CleanBrokerDataHeader:
    """Header of 1011: forget brokers of a group; ``broker_ids`` is ``1;2``, None means all."""

    broker_name: str = wire("brokerName")
    cluster_name: str | None = wire("clusterName", default=None)
    broker_ids: str | None = wire("brokerControllerIdsToClean", default=None)
    clean_living_broker: bool = wire("isCleanLivingBroker", default=False)
    invoke_time: int | None = wire("invokeTime", default=None, bits=64)


@header
class NextBrokerIdHeader:
    """Header of 1012."""

    cluster_name: str = wire("clusterName")
    broker_name: str = wire("brokerName")


@header
class NextBrokerIdResponseHeader:
    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    next_broker_id: int | None = wire("nextBrokerId", default=None, bits=64)


@header
class ApplyBrokerIdHeader:
    """Header of 1013; ``register_check_code`` is ``address;milliseconds`` of the applicant."""

    cluster_name: str = wire("clusterName")
    broker_name: str = wire("brokerName")
    applied_broker_id: int = wire("appliedBrokerId", bits=64)
    register_check_code: str = wire("registerCheckCode")


@header
class ApplyBrokerIdResponseHeader:
    cluster_name: str | None = wire("clusterName", default=None)
    broker_name: str | None = wire("brokerName", default=None)
