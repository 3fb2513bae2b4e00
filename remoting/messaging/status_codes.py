"""Results of calls: ``Refused``, statuses, and the codes of brokers in those of the service. PURE.

Source: proxy/grpc/v2/common/ResponseBuilder.java; the enum Code of apache/rocketmq-apis.
"""

from __future__ import annotations

from collections.abc import Iterable

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.refused_sends import is_refused_for_now

_CODES: dict[int, int] = {
    ResponseCode.SUCCESS: pb.Code.OK,
    ResponseCode.SYSTEM_BUSY: pb.Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: pb.Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: pb.Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.Code.NOT_IMPLEMENTED,
    ResponseCode.VERSION_NOT_SUPPORTED: pb.Code.VERSION_UNSUPPORTED,
    ResponseCode.TOPIC_NOT_EXIST: pb.Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.NO_PERMISSION: pb.Code.FORBIDDEN,
    ResponseCode.MESSAGE_ILLEGAL: pb.Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: pb.Code.BAD_REQUEST,
    ResponseCode.BROKER_NOT_EXIST: pb.Code.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: pb.Code.ILLEGAL_FILTER_EXPRESSION,
    # A handle of a message that is not there any more: clients repeat other refusals for ever.
    ResponseCode.NO_MESSAGE: pb.Code.INVALID_RECEIPT_HANDLE,
    ResponseCode.PULL_NOT_FOUND: pb.Code.MESSAGE_NOT_FOUND,
    ResponseCode.POLLING_TIMEOUT: pb.Code.MESSAGE_NOT_FOUND,
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.Code.HA_NOT_AVAILABLE,
    ResponseCode.LMQ_QUOTA_EXCEEDED: pb.Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: pb.Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    ResponseCode.RPC_TIME_OUT: pb.Code.PROXY_TIMEOUT,
}
_NAMES: dict[int, str] = {code: name for name, code in pb.Code.items()}
# A broker has one code for several refusals, which differ in how the remark begins.
_NOT_AUTHORIZED = (
    # ACL 1.0 and request signatures
    *("no accesskey is configured", "no acl config", "check signature failed"),
    "org.apache.rocketmq.acl.",
    # ACL 2.0
    *("user:", "username ", "authentication ", "authorization ", "datetime is null"),
    "x-mq-date-time ",
)
_WRONG_TYPE = "current message type not match"
_WRONG_TIME = "timer message illegal"


class Refused(RemotingError):
    """The service refuses a call, or one entry of it.

    *code* is a value of the enum Code; *message* is the cause and the fix, for the client's user.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code_name(code)}: {message}")
        self.code = code
        self.message = message

    def status(self) -> pb.Status:
        """Return the status of the answer."""
        return status(self.code, self.message)


def status(code: int = pb.Code.OK, message: str = "OK") -> pb.Status:
    """Return a status; ``code``: a value of the enum Code."""
    return pb.Status(code=code, message=message)  # type: ignore[arg-type]  # any int at run time


def code_name(code: int) -> str:
    """Return the name of a code: ``TOPIC_NOT_FOUND``; its digits, if the enum does not have it."""
    return _NAMES.get(code) or str(code)


def refused_by_broker(code: int, remark: str | None) -> Refused:
    """Return the refusal for a response of a broker or name server that is not a success.

    ``code``: of the response; codes that the service has no word for become
    INTERNAL_SERVER_ERROR. The message is ``CODE: <code>  DESC: <remark>``, as RocketMQ's own
    clients print it.

    Source: client/exception/MQBrokerException.java.
    """
    remark = remark or "the broker gave no reason; see its log"
    refused = _CODES.get(code, pb.Code.INTERNAL_SERVER_ERROR)
    if code == ResponseCode.NO_PERMISSION and remark.lower().startswith(_NOT_AUTHORIZED):
        refused = pb.Code.UNAUTHORIZED
    elif is_refused_for_now(code, remark):  # clients wait before they try this again
        refused = pb.Code.TOO_MANY_REQUESTS
    elif code == ResponseCode.MESSAGE_ILLEGAL and remark.startswith(_WRONG_TYPE):
        refused = pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    elif code == ResponseCode.MESSAGE_ILLEGAL and remark.startswith(_WRONG_TIME):
        refused = pb.Code.ILLEGAL_DELIVERY_TIME
    return Refused(refused, f"CODE: {int(code)}  DESC: {remark}")


def unknown_topic(topic: str) -> Refused:
    """Return the refusal for a topic without a route. Users look for the first words of it."""
    return refused_by_broker(
        ResponseCode.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {topic}; create it with mqadmin"
        " updateTopic, or check its name",
    )


OK = status()
"""The status of all that went well. A message that has it copies it; it must not be changed."""
_OK_CODE = int(pb.Code.OK)


def top_status(codes: Iterable[int]) -> pb.Status:
    """Return the status of a call with entries of these codes: the one of all, or MULTIPLE_RESULTS.

    OK without entries.
    """
    found = set(codes)
    if len(found) > 1:
        return status(pb.Code.MULTIPLE_RESULTS, "the results of the entries differ; see each entry")
    code = next(iter(found), _OK_CODE)
    if code == _OK_CODE:
        return OK
    return status(code, code_name(code))
