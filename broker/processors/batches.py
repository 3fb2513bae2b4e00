"""Batch requests (SEND_BATCH_MESSAGE): their messages checked, and made drafts.

What can be asked of a batch as a whole is asked once: whether any properties want more than to be stored, whether any message could break a limit. Only where
the answer is yes its messages are looked at one by one; so a message of an ordinary batch costs its draft and little more, one of an inner batch nearly nothing.
Source: broker/processor/SendMessageProcessor.java#sendBatchMessage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from triomq.broker.processors import properties as props
from triomq.broker.processors.admission import Admission, Target
from triomq.broker.processors.inner_batches import inner_batch, own_flags, refuse_inner_batch, refuse_numbers
from triomq.broker.processors.properties import PROPERTY_END
from triomq.broker.store.config import StoreConfig
from triomq.broker.store.draft import HEAD_BYTES_MAX, I4_MAX, Draft, check_draft, record_bytes_max
from triomq.broker.store.errors import IllegalMessage
from triomq.remoting.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol import names
from triomq.remoting.protocol.batch import batch_properties, split_batch
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message import KEYS, TAGS, UNIQ_KEY
from triomq.remoting.server.handlers import Request

UNIQUE_KEY_NAME, TAGS_NAME, KEYS_NAME = (f"{PROPERTY_END}{name}\x01" for name in (UNIQ_KEY, TAGS, KEYS))


@attrs.define(eq=False)
class Batches:
    """What becomes of batch requests; refusals are Rejected."""

    admission: Admission
    config: StoreConfig
    cluster_name: str
    message_size_bytes_max: int

    def ordinary(self, request: Request, target: Target, queue_id: int, known: Mapping[str, str]) -> list[Draft]:
        """A draft for each message of a batch; they keep their properties as they are."""
        self._check_request(request, known)
        try:
            elements = split_batch(request.body)
        except RemoteProtocolError as error:
            raise self.illegal(error.reason) from None
        encoded = [element[2] for element in elements]
        header: SendMessageHeader = request.header
        joined = self._check_elements(header, target, encoded)
        # No message of a small batch can be too large, and all have the same topic, queue and numbers: to check the first one is enough then.
        closely = len(request.body) + HEAD_BYTES_MAX > record_bytes_max(self.config) or b"\0\2" in joined or joined.endswith(b"\0")
        topic, born_timestamp, born_host = target.topic, header.born_timestamp, request.connection.peer_bytes
        sys_flag, reconsume_times = own_flags(header), header.reconsume_times or 0
        drafts: list[Draft] = []
        for flag, body, properties in elements:
            text = PROPERTY_END + properties.decode("utf-8", "replace")
            tags = unique_key = keys = None  # the last of a name counts
            _, found, rest = text.rpartition(TAGS_NAME)
            if found:
                tags = rest.partition(PROPERTY_END)[0]
            _, found, rest = text.rpartition(UNIQUE_KEY_NAME)
            if found:
                unique_key = rest.partition(PROPERTY_END)[0]
            if KEYS_NAME in text:
                keys = text.rpartition(KEYS_NAME)[2].partition(PROPERTY_END)[0]
            draft = Draft(topic, queue_id, body, properties, flag, sys_flag, born_timestamp, born_host, reconsume_times, 0, tags, unique_key, keys)
            if closely or flag < -I4_MAX or not drafts:
                self.check(draft)
            drafts.append(draft)
        return drafts

    def inner(self, request: Request, target: Target, queue_id: int, text: str, known: Mapping[str, str], unique_key: str) -> tuple[Draft, int]:
        """The one draft of a batch for a topic with batch consume queues, and how many messages it has."""
        self._check_request(request, known)
        try:
            encoded = batch_properties(request.body)
        except RemoteProtocolError as error:
            raise self.illegal(error.reason) from None
        self._check_elements(request.header, target, encoded)
        draft = inner_batch(request, target, queue_id, text, known, unique_key, self.cluster_name, len(encoded))
        self.check(draft)
        return draft, len(encoded)

    def check(self, draft: Draft) -> None:
        """Raise Rejected if the store cannot take this."""
        try:
            check_draft(draft, self.config)
        except IllegalMessage as error:
            raise self.illegal(error.reason) from None

    def illegal(self, detail: str) -> Rejected:
        """The refusal of a message that is wrong in itself."""
        return Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self.message_size_bytes_max}B, msg properties length limit 32KB. ({detail})",
        )

    def _check_request(self, request: Request, known: Mapping[str, str]) -> None:
        """What a batch may not be, whatever is in it."""
        header: SendMessageHeader = request.header
        if header.topic.startswith(names.RETRY_PREFIX):
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}")
        self.admission.refuse_unsupported(header, known)
        refuse_inner_batch(header, known)
        if len(request.body) > self.message_size_bytes_max:
            raise self.illegal(f"the batch has {len(request.body)} bytes")
        if not request.body:
            raise self.illegal("the batch is empty")
        self._refuse_delay(known)

    def _check_elements(self, header: SendMessageHeader, target: Target, encoded: Sequence[bytes]) -> bytes:
        """What the properties of the messages may not ask for, since a batch cannot give it; all properties, one behind the other."""
        joined = b"\2".join(encoded)
        if target.message_type is None and not props.is_unusual(joined.decode("utf-8", "replace")):
            return joined
        texts = [properties.decode("utf-8", "replace") for properties in encoded]
        for index in props.unusual_texts(texts) if target.message_type is None else range(len(texts)):
            known = props.known_properties(texts[index])
            self.admission.refuse_unsupported(header, known)
            self.admission.refuse_other_type(target, known)
            refuse_numbers(known)
            self._refuse_delay(known)
        return joined

    def _refuse_delay(self, known: Mapping[str, str]) -> None:
        if self.admission.delay_level(known):
            raise self.illegal("a batch cannot be delayed")
