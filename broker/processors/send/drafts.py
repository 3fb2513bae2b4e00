"""The draft stage: one class for each kind of request makes the drafts of the request's records.

A single message becomes one record. A batch becomes one record for each message; in a topic with
batch consume queues it becomes a single record with all its messages, an *inner batch*, which the
consumers split. The messages of a batch are searched together for unusual properties and sizes, as
that is faster; they are checked one by one only if the search finds any. Source:
broker/processor/SendMessageProcessor.java#sendBatchMessage, broker/util/HookUtils.java.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import attrs

from triomq.broker.processors.send import known_properties as props
from triomq.broker.processors.send.known_properties import OWN_NUMBERS, PROPERTY_END, Unusual
from triomq.broker.processors.send.traits import Incoming, Traits, illegal
from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import (
    HEAD_BYTES_MAX,
    KEYS_MAX,
    Draft,
    check_draft,
    record_bytes_max,
)
from triomq.broker.store.core.errors import IllegalMessage
from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol.batch import (
    ELEMENTS_MAX,
    BatchTooLong,
    batch_properties,
    decode_batch,
)
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.message_properties import (
    CLUSTER,
    INNER_NUM,
    KEYS,
    POP_CK,
    TAGS,
    UNIQ_KEY,
)
from triomq.remoting.protocol.sys_flags import INNER_BATCH, NEED_UNWRAP

REPLACED = (POP_CK, *props.OWN, *OWN_NUMBERS)
"""Properties that only the broker writes: removed from a single message if the sender set them."""
SHORT_BATCH_MAX = 2_000
"""Messages of a batch, or of the batches of requests that came together, which are stored at once:
some milliseconds. Longer batches are read in a thread.
"""


class LongBatch(Exception):
    """The requests have more messages than are stored at once: they are read in a thread."""


@attrs.define(eq=False)
class RequestKind(abc.ABC):
    """The base class: makes the drafts of one kind of request."""

    traits: Traits
    config: StoreConfig
    unique_ids: UniqueIds
    clock_ms: Callable[[], int]

    @abc.abstractmethod
    def drafts(self, message: Incoming, text: str) -> tuple[list[Draft], str, int]:
        """Make the drafts of a request; ``text`` is the text of its properties.

        Returns: the drafts, the message id for the response, the number of messages in the drafts.
        Raises: Rejected.
        """

    def check(self, draft: Draft) -> None:
        """Check a draft against the limits of the store. Raises: Rejected."""
        try:
            check_draft(draft, self.config)
        except IllegalMessage as error:
            raise illegal(str(error), self.config) from None


def draft_of(message: Incoming, text: str, unique_key: str) -> Draft:
    """Return the draft of a record with the body of the request; ``text``: its properties."""
    request, known = message.request, message.known
    header: SendMessageHeader = request.header
    return Draft(
        message.target.topic,
        message.queue_id,
        request.body,
        text.encode("utf-8", "replace"),
        header.flag,
        header.sys_flag,
        header.born_timestamp,
        request.connection.peer_bytes,
        header.reconsume_times or 0,
        tags=known.get(TAGS),
        unique_key=unique_key,
        keys=known.get(KEYS),
    )


@attrs.define(eq=False)
class SingleKind(RequestKind):
    """A single message: its traits check it, then its draft is made, then they change the draft."""

    suffix: str
    """The text of the properties that the broker adds at the end."""

    def drafts(self, message: Incoming, text: str) -> tuple[list[Draft], str, int]:
        known = message.known
        self.traits.check(message)
        dropped = [*message.dropped, *[name for name in REPLACED if name in known]]
        added = {}
        unique_key = known.get(UNIQ_KEY, "")
        if not unique_key:
            unique_key = added[UNIQ_KEY] = self.unique_ids.next(self.clock_ms())
            dropped.append(UNIQ_KEY)
        if dropped:
            text = props.rewritten(text, dropped, added)
        elif text and text[-1] != PROPERTY_END:
            text += PROPERTY_END
        draft = draft_of(message, text + self.suffix, unique_key)
        draft.special = message.target.batched
        if message.traits:
            self.traits.shape(message, draft)
        self.check(draft)
        return [draft], unique_key, 1


@attrs.define(eq=False)
class AnyBatchKind(RequestKind):
    """The checks that both kinds of batches share."""

    def unique_key(self, message: Incoming) -> str:
        """Return the message id for the response: the sender's, or a new one."""
        return message.known.get(UNIQ_KEY) or self.unique_ids.next(self.clock_ms())

    def check_request(self, message: Incoming) -> None:
        """Check the batch as a whole. Raises: Rejected."""
        if message.target.retry:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {message.request.header.topic}",
            )
        self.traits.check_batch(message)
        body = message.request.body
        if len(body) > self.config.message_size_bytes_max:
            raise illegal(f"the batch has {len(body)} bytes", self.config)
        if not body:
            raise illegal("the batch is empty", self.config)

    def check_elements(self, message: Incoming, texts: Sequence[str], unusual: Unusual) -> None:
        """Refuse messages with properties that a batch does not support. Raises: Rejected.

        Only the ``unusual`` ones are checked, unless the topic takes one message type only, or
        messages with keys.
        """
        if message.target.message_type is not None or message.target.compacted:
            unusual = {index: props.known_properties(text) for index, text in enumerate(texts)}
        for known in unusual.values():
            self.traits.check_element(
                Incoming(message.request, known, message.target, message.queue_id)
            )


@attrs.define(eq=False)
class BatchKind(AnyBatchKind):
    """A batch that becomes one record per message; the properties stay as the sender wrote them."""

    def drafts(self, message: Incoming, text: str) -> tuple[list[Draft], str, int]:
        """Make the drafts. Raises: Rejected, LongBatch."""
        self.check_request(message)
        drafts = self.read(message, SHORT_BATCH_MAX)
        return drafts, self.unique_key(message), len(drafts)

    def read(self, message: Incoming, count_max: int = ELEMENTS_MAX) -> list[Draft]:
        """Make the drafts of a request that was checked; a thread may do it.

        Raises: Rejected, LongBatch if there are more than ``count_max``, but not too many.
        """
        request = message.request
        try:
            elements = decode_batch(request.body, count_max)
        except BatchTooLong as error:
            if count_max < ELEMENTS_MAX:
                raise LongBatch from None
            raise illegal(str(error), self.config) from None
        except RemoteProtocolError as error:
            raise illegal(error.reason, self.config) from None
        encoded = [element[2] for element in elements]
        texts = [properties.decode("utf-8", "replace") for properties in encoded]
        unusual, indexed = props.read_texts(texts)
        self.check_elements(message, texts, unusual)
        # All messages share topic, queue and numbers, and in a small batch none can be too large:
        # the first message is checked for all. Each is checked if the batch is large, or if some
        # properties end with a zero byte, which `check` refuses; a single one if it may have too
        # many keys.
        joined = b"\2".join(encoded)
        closely = (
            len(request.body) + HEAD_BYTES_MAX > record_bytes_max(self.config)
            or b"\0\2" in joined
            or joined.endswith(b"\0")
        )
        header: SendMessageHeader = request.header
        topic, queue_id, sys_flag = message.target.topic, message.queue_id, header.sys_flag
        born_timestamp, born_host = header.born_timestamp, request.connection.peer_bytes
        reconsume_times = header.reconsume_times or 0
        drafts: list[Draft] = []
        for (flag, body, properties), (tags, unique_key, keys) in zip(elements, indexed):
            draft = Draft(
                topic,
                queue_id,
                body,
                properties,
                flag,
                sys_flag,
                born_timestamp,
                born_host,
                reconsume_times,
                0,
                tags,
                unique_key,
                keys,
            )
            if closely or len(keys or "") > KEYS_MAX or not drafts:
                self.check(draft)
            drafts.append(draft)
        return drafts


@attrs.define(eq=False)
class InnerBatchKind(AnyBatchKind):
    """A batch that becomes one record, with the request's properties; the messages keep theirs."""

    cluster_name: str

    def drafts(self, message: Incoming, text: str) -> tuple[list[Draft], str, int]:
        self.check_request(message)
        try:
            encoded = batch_properties(message.request.body)
        except RemoteProtocolError as error:
            raise illegal(error.reason, self.config) from None
        texts = [properties.decode("utf-8", "replace") for properties in encoded]
        self.check_elements(message, texts, props.unusual_texts(texts))
        count = len(encoded)
        unique_key = self.unique_key(message)
        added = {UNIQ_KEY: unique_key, CLUSTER: self.cluster_name, INNER_NUM: str(count)}
        text = props.rewritten(text, (*added, *OWN_NUMBERS), added)
        draft = draft_of(message, text, unique_key)
        draft.sys_flag |= INNER_BATCH | NEED_UNWRAP
        draft.special = True
        self.check(draft)
        return [draft], unique_key, count
