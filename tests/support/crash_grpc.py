"""Senders of the crash loop that speak gRPC, as RocketMQ 5's clients do, by grpcio.

An answer names the queue offset of a message, but neither its queue nor its place in the log.
"""

from __future__ import annotations

import concurrent.futures

import grpc
from crash_loop import GRPC_PORT, QUEUES, TOPIC, Acknowledged, Sender, body_of

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.service import PATH
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.topic import CreateTopicHeader

CALL_SECONDS = 10.0


class GrpcSender(Sender):
    """Calls of one channel, ``depth`` in flight, until the broker is gone."""

    def run(self) -> None:
        try:
            with BlockingConnection(self.address) as connection:  # no gRPC client creates topics
                header = CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6)
                connection.invoke(request(RequestCode.UPDATE_AND_CREATE_TOPIC, header), timeout=10)
        except (RemotingError, OSError):
            return
        host, _, port = self.address.partition(":")
        with grpc.insecure_channel(f"{host}:{int(port) + GRPC_PORT}") as channel:
            call = channel.unary_unary(
                f"{PATH}SendMessage",
                request_serializer=rpc.SendMessageRequest.SerializeToString,
                response_deserializer=rpc.SendMessageResponse.FromString,
            )
            metadata = [("x-mq-client-id", self.label), ("x-mq-language", "PYTHON")]
            flying: dict[grpc.Future, str] = {}
            gone = False
            while flying or not gone:
                while len(flying) < self.depth and not gone:
                    message, body = self._next()
                    future = call.future(message, timeout=CALL_SECONDS, metadata=metadata)
                    flying[future] = body
                future = next(iter(flying))
                gone |= not self._note(future, flying.pop(future))

    def _next(self) -> tuple[rpc.SendMessageRequest, str]:
        name = f"{self.label}.{self.sent}"
        body = body_of(name, self.choose.randrange(1500))
        self.sent += 1
        message = pb.Message(
            topic=pb.Resource(name=TOPIC),
            body=body.encode(),
            system_properties=pb.SystemProperties(message_id=name, born_host="peer"),
        )
        return rpc.SendMessageRequest(messages=[message]), body

    def _note(self, future: grpc.Future, body: str) -> bool:
        """Note an answer; return False if none came."""
        try:
            answer = future.result()
        except (grpc.RpcError, concurrent.futures.CancelledError):
            return False
        entry = answer.entries[0] if answer.entries else None
        status = answer.status if entry is None else entry.status
        if entry is not None and status.code == pb.Code.OK:
            self.acknowledged.append(Acknowledged(body, None, entry.offset, None))
            return True
        busy = status.code == pb.Code.TOO_MANY_REQUESTS
        code = ResponseCode.SYSTEM_BUSY if busy else status.code
        self.refused[body.partition(":")[0]] = f"{code:d} {status.message}"
        return True
