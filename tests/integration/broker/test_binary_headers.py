"""A broker answers every kind of request in the form in which it was asked: at once, later, and
when it refuses.
"""

from __future__ import annotations

import pytest
import trio

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.rpc_hooks import Serialisation
from triomq.remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    SUSPEND,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.record_reader import decode_records
from triomq.testing import local_cluster


def pull(offset: int, suspend_ms: int) -> Command:
    header = PullMessageHeader(
        consumer_group="G",
        topic="Forms",
        queue_id=0,
        queue_offset=offset,
        message_count_max=32,
        sys_flag=SUSPEND | SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_ms=suspend_ms,
        sub_version=0,
        subscription="*",
    )
    return request(RequestCode.PULL_MESSAGE, header)


def send(body: bytes) -> Command:
    header = SendMessageHeader(
        producer_group="P",
        topic="Forms",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties="",
    )
    return request(RequestCode.SEND_MESSAGE_V2, header, body)


@pytest.mark.parametrize("form", SerializeType, ids=lambda form: form.name)
async def test_answers_come_in_the_form_of_the_question(form: SerializeType) -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("Forms", queues=1)

        def work() -> None:
            with BlockingConnection(
                cluster.brokers[0].address, hooks=[Serialisation(form)]
            ) as connection:
                answers = [connection.invoke(send(b"one"))]
                assert answers[0].header(SendMessageResponseHeader).queue_offset == 0
                answers.append(connection.invoke(pull(0, 0)))
                assert [message.body for message in decode_records(answers[1].body)] == [b"one"]
                held = connection.send(pull(1, 20_000))
                connection.invoke(send(b"two"))  # lets the held pull go
                answers.append(connection.receive(held, 20))
                assert answers[2].header(PullMessageResponseHeader).next_begin_offset == 2
                answers.append(connection.invoke(pull(2, 20)))  # held until its time is over
                answers.append(connection.invoke(Command(9999)))
                answers.append(connection.invoke(Command(RequestCode.GET_MAX_OFFSET)))
                assert [answer.code for answer in answers] == [
                    *(
                        ResponseCode.SUCCESS,
                        ResponseCode.SUCCESS,
                        ResponseCode.SUCCESS,
                        ResponseCode.PULL_NOT_FOUND,
                    ),
                    *(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR),
                ]
                assert {answer.serialize for answer in answers} == {form}
                # A code beyond 16 bits cannot be asked in binary.
                assert (
                    connection.invoke(Command(RequestCode.POP_ROLLBACK)).serialize
                    is SerializeType.JSON
                )

        await trio.to_thread.run_sync(work)
