"""Refusals of pulls that end a query: a retry does not change them."""

from triomq.client.spark.errors import SourceError
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command

PERMANENT_REFUSALS = {
    ResponseCode.NO_PERMISSION: "check the topic's and the broker's permissions",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the option 'tags' or 'filterSql'",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "create the group with `mqadmin group create`, or name an existing one in 'groupId'"
    ),
}
"""refusals that a retry does not change → what to do"""


def refused_pull(queue: str, broker: str, response: Command) -> SourceError:
    """Return the error for a permanent refusal."""
    return SourceError(
        f"broker {broker} refuses pulls from {queue}: {response.remark};"
        f" {PERMANENT_REFUSALS[ResponseCode(response.code)]}"
    )
