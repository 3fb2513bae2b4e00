"""The request that carries a message.

Only a few fields of its header differ between the messages of a queue; a template has the rest.
"""

from __future__ import annotations

import attrs

from triomq.client.core.config import ProducerSettings
from triomq.client.sending.encoding import OutgoingMessage
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.request_template import RequestTemplate

_VARYING = ("sys_flag", "born_timestamp", "flag", "properties")


@attrs.define(eq=False)
class SendRequests:
    """Makes the requests of one producer group."""

    group: str
    settings: ProducerSettings

    def command(
        self, outgoing: OutgoingMessage, queue: MessageQueue, code: int, *, oneway: bool = False
    ) -> Command:
        """Return the request for one message as RPC hooks see it; a template costs a third."""
        header = self._header(queue, code)
        header.sys_flag, header.born_timestamp = outgoing.sys_flag, outgoing.born_timestamp
        header.flag, header.properties = outgoing.flag, outgoing.properties
        return request(code, header, outgoing.body, oneway=oneway)

    def template(self, queue: MessageQueue, code: int) -> RequestTemplate:
        """Return the template of the requests to one queue."""
        return RequestTemplate(code, self._header(queue, code), _VARYING)

    def _header(self, queue: MessageQueue, code: int) -> SendMessageHeader:
        return SendMessageHeader(
            producer_group=self.group,
            topic=queue.topic,
            default_topic=self.settings.create_topic_key,
            default_topic_queue_count=self.settings.default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )
