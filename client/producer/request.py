"""The request that carries a message: a header of which only a few fields differ between the messages of a queue."""

from __future__ import annotations

import attrs

from triomq.client.config import ProducerSettings
from triomq.client.producer.encoding import Outgoing
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import ONEWAY_FLAG, Command
from triomq.remoting.protocol.command import Outgoing as OutgoingRequest
from triomq.remoting.protocol.command import request as generic_request
from triomq.remoting.protocol.header_fast import RequestTemplate
from triomq.remoting.protocol.headers.send import SendMessageHeader

_VARYING = ("sys_flag", "born_timestamp", "flag", "properties")


@attrs.define(eq=False)
class SendRequests:
    """Makes requests of one producer group."""

    group: str
    settings: ProducerSettings
    _templates: dict[tuple[int, str, str, int], RequestTemplate] = attrs.field(factory=dict, init=False)
    """by request code, topic, broker name and queue"""

    def make(
        self, outgoing: Outgoing, queue: MessageQueue, code: int, *, oneway: bool = False, hooked: bool = False
    ) -> OutgoingRequest:
        """Make the request for one message; a `Command`, which costs three times as much, only if hooks are to see it."""
        flag = ONEWAY_FLAG if oneway else 0
        if hooked:
            header = self._header(queue, code)
            header.sys_flag, header.born_timestamp = outgoing.sys_flag, outgoing.born_timestamp
            header.flag, header.properties = outgoing.flag, outgoing.properties
            command: Command = generic_request(code, header, outgoing.body, oneway=oneway)
            return command
        key = (code, queue.topic, queue.broker_name, queue.queue_id)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = RequestTemplate(code, self._header(queue, code), _VARYING, short=True)
        numbers = (outgoing.sys_flag, outgoing.born_timestamp, outgoing.flag)
        return template.make(numbers, outgoing.properties, outgoing.body, flag)

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
