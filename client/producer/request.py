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
from triomq.remoting.protocol.header_fast import LatestNumbers, RequestTemplate
from triomq.remoting.protocol.headers.send import SendMessageHeader

TEMPLATES_REMEMBERED = 4096
"""of a producer that sends to ever new queues"""
_VARYING = ("sys_flag", "born_timestamp", "flag", "properties")


@attrs.define(eq=False)
class SendRequests:
    """Makes requests of one producer group."""

    group: str
    settings: ProducerSettings
    _templates: dict[tuple[int, MessageQueue], RequestTemplate] = attrs.field(factory=dict, init=False)
    """by request code and queue"""
    _latest: LatestNumbers = attrs.field(factory=LatestNumbers, init=False)

    def make(
        self, outgoing: Outgoing, queue: MessageQueue, code: int, *, oneway: bool = False, hooked: bool = False
    ) -> OutgoingRequest:
        """Make the request for one message; a `Command`, which costs three times as much, only if hooks are to see it."""
        if hooked:
            header = self._header(queue, code)
            header.sys_flag, header.born_timestamp = outgoing.sys_flag, outgoing.born_timestamp
            header.flag, header.properties = outgoing.flag, outgoing.properties
            command: Command = generic_request(code, header, outgoing.body, oneway=oneway)
            return command
        numbers = (outgoing.sys_flag, outgoing.born_timestamp, outgoing.flag)
        flag = ONEWAY_FLAG if oneway else 0
        return self.template(queue, code).make(numbers, outgoing.properties, outgoing.body, flag)

    def template(self, queue: MessageQueue, code: int) -> RequestTemplate:
        """Return the template of the requests to one queue."""
        template = self._templates.get((code, queue))
        if template is None:
            if len(self._templates) >= TEMPLATES_REMEMBERED:
                self._templates.clear()
            template = self._templates[code, queue] = RequestTemplate(
                code, self._header(queue, code), _VARYING, latest=self._latest, short=True
            )
        return template

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
