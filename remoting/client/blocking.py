"""A connection for threads without an event loop (Spark executors, scripts), over blocking sockets.

Requests can be pipelined: ``invoke_all``, or several ``send`` and then ``receive`` in the order in
which the answers are needed. One thread at a time may use a connection.
"""

import errno
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from triomq.remoting.client.loss_reason import TimeOuts, sending_failed, with_hint
from triomq.remoting.client.proxies import SocksProxies, dial_through_blocking
from triomq.remoting.client.rpc_hooks import RpcHook
from triomq.remoting.core.address import parse_address
from triomq.remoting.core.config_error import ConfigError
from triomq.remoting.core.errors import (
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RemotingError,
    RequestTimeout,
    TlsFailed,
)
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.socket_options import set_stream_options
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, encode_command, response_to
from triomq.remoting.protocol.peer import ClientPeer, PeerStatistics
from triomq.remoting.tls.client import Tls

if TYPE_CHECKING:
    from triomq.remoting.tls.stream import TlsStream

_READ_BYTES = 64 * 1024


@attrs.define(eq=False)
class BlockingConnection:
    """Connects at once, within *timeout* seconds, or raises ConnectFailed.

    After RequestTimeout the connection can be used, and the late answer is dropped, unless nothing
    came during the wait: then it is lost. After ConnectionLost call ``reconnect``. When a
    server that stops answers GO_AWAY, ``invoke`` connects anew and repeats the request once;
    ``receive`` returns that answer.
    """

    address: str
    timeout: float = attrs.field(default=3.0, kw_only=True)
    tls: Tls | None = attrs.field(default=None, kw_only=True)
    socks: SocksProxies = attrs.field(default=SocksProxies(), kw_only=True)
    hooks: Sequence[RpcHook] = attrs.field(default=(), kw_only=True)
    _sock: socket.socket = attrs.field(init=False)
    _stream: "TlsStream | None" = attrs.field(default=None, init=False)
    _peer: ClientPeer[None] = attrs.field(factory=ClientPeer, init=False)
    # By opaque: requests whose answers were not received yet, and such answers.
    _asked: dict[int, Command] = attrs.field(factory=dict, init=False)
    _answers: dict[int, Command] = attrs.field(factory=dict, init=False)
    _reads: int = attrs.field(default=0, init=False)
    _time_outs: TimeOuts = attrs.field(factory=TimeOuts, init=False)
    _lost: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._connect()

    def _connect(self) -> None:
        host, port = parse_address(self.address)
        proxy = self.socks.for_host(host)
        awaited = "answer"
        try:
            if proxy is None:
                self._sock = socket.create_connection((host, port), self.timeout)
            else:
                self._sock = dial_through_blocking(proxy, host, port, self.timeout)
            try:
                if self._sock.getsockname() == self._sock.getpeername():
                    # An ephemeral port can connect to itself while no server listens there.
                    raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                set_stream_options(self._sock)
                if self.tls is not None:
                    awaited = "TLS handshake"
                    self._stream = self._secure(self.tls, host)
            except BaseException:
                self._sock.close()
                raise
        except TimeoutError:
            raise ConnectFailed(self.address, f"no {awaited} within {self.timeout:g} s") from None
        except OSError as error:
            raise ConnectFailed(self.address, explained(error)) from None
        except (RemoteProtocolError, TlsFailed, ConfigError) as error:
            raise ConnectFailed(self.address, str(error)) from None

    def _secure(self, tls: Tls, host: str) -> "TlsStream":
        from triomq.remoting.client.tls_handshake import secure_blocking  # ssl, only with TLS
        from triomq.remoting.tls.contexts import current_client_context  # ssl, only with TLS

        return secure_blocking(self._sock, current_client_context(tls), host)

    def __enter__(self) -> "BlockingConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return bool(self._lost)

    def invoke(self, command: Command, timeout: float = 3.0) -> Command:
        """Send a request and wait for its answer.

        Raises: ConnectionLost, RequestTimeout; ConnectFailed after GO_AWAY.
        """
        answer = self.receive(self.send(command), timeout)
        if answer.code != ResponseCode.GO_AWAY or self._asked or self._lost:
            return answer  # answers to other requests may still come over this connection
        self.reconnect()
        return self.receive(self.send(command), timeout)

    def invoke_all(
        self, commands: Iterable[Command], timeout: float = 3.0, *, in_flight_max: int = 64
    ) -> list[Command]:
        """Send requests without waiting for each answer; return all answers in the same order.

        At most *in_flight_max* requests are pending at a time, so that neither side's buffers fill
        up. *timeout* is for each answer. After an error the pending requests are given up. GO_AWAY
        is returned like any other answer.

        Raises: ConnectionLost, RequestTimeout.
        """
        waiting: deque[int] = deque()
        answers: list[Command] = []
        try:
            for command in commands:
                if len(waiting) >= in_flight_max:
                    answers.append(self.receive(waiting[0], timeout))
                    waiting.popleft()
                waiting.append(self.send(command))
            while waiting:
                answers.append(self.receive(waiting[0], timeout))
                waiting.popleft()
        except RemotingError:
            for opaque in waiting:
                self.give_up(opaque)
            raise
        return answers

    def reconnect(self) -> None:
        """Close, drop pending requests, and connect anew; may be called again after an error.

        Raises: ConnectFailed.
        """
        self._lose("connecting anew")
        self._asked.clear()
        self._answers.clear()
        self._peer = ClientPeer(first_opaque=self._peer.next_opaque)
        self._stream = None
        self._time_outs = TimeOuts()
        self._connect()
        self._lost = ""

    def send(self, command: Command) -> int:
        """Send a request; return the number by which ``receive`` finds its answer.

        Raises: ConnectionLost.
        """
        self._check()
        for hook in self.hooks:
            hook.before_request(self.address, command)
        pending, data = self._peer.send(command, None, math.inf)
        self._asked[pending.opaque] = command
        self._transmit(data)
        return pending.opaque

    def oneway(self, command: Command) -> None:
        """Send a one-way request. Raises: ConnectionLost."""
        self._check()
        for hook in self.hooks:
            hook.before_request(self.address, command)
        self._transmit(self._peer.send_oneway(command))

    def receive(self, opaque: int, timeout: float = 3.0) -> Command:
        """Wait for the answer to an earlier request; keep other answers for later calls.

        Raises: ConnectionLost, RequestTimeout (the request is given up then), KeyError for a number
        without a pending request.
        """
        command, reads = self._asked[opaque], self._reads
        began = time.monotonic()
        deadline = began + timeout
        while opaque not in self._answers:
            self._check()
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                self.give_up(opaque)
                if reads == self._reads:
                    silent = self._time_outs.timed_out(began, reads, time.monotonic())
                    if silent:
                        self._lose(f"the peer sent nothing for {silent:.3g} s")
                raise RequestTimeout(self.address, int(command.code), timeout)
        del self._asked[opaque]
        answer = self._answers.pop(opaque)
        for hook in self.hooks:
            hook.after_response(self.address, command, answer)
        return answer

    def give_up(self, opaque: int) -> None:
        """Give up a pending request; its answer is dropped when it comes."""
        self._peer.give_up(opaque)
        self._asked.pop(opaque, None)
        self._answers.pop(opaque, None)

    def statistics(self) -> PeerStatistics:
        """Return counters since the connection was made: sent, replied, late and so on."""
        return self._peer.statistics()

    def close(self) -> None:
        """Close; may be called again."""
        self._lose("closed by this side")

    def _read(self, seconds: float) -> bool:
        """Read once; return False if nothing came in time."""
        try:
            self._sock.settimeout(seconds)
            room = self._peer.room() if self._stream is None else None
            if room is not None:
                count = self._sock.recv_into(room)
            else:
                data = self._sock.recv(_READ_BYTES)
                count = len(data)
        except TimeoutError:
            return False
        except OSError as error:
            self._lose(self._hinted(f"reading failed: {error.strerror or error}"))
            return True
        self._reads += 1
        if not count:
            self._lose(self._hinted("the peer closed the connection"))
            return True
        try:
            if room is not None:
                received = self._peer.receive_in_room(count)
            else:
                if self._stream is not None:
                    data = self._decrypted(self._stream, data)
                received = self._peer.receive(data)
        except RemotingError as error:
            self._lose(str(error))
            return True
        for pending, answer in received.replies:
            self._answers[pending.opaque] = answer
        for request in received.requests:
            if not request.is_oneway:  # this client has no handlers for requests of servers
                remark = f" request type {request.code} not supported"
                self._transmit(
                    encode_command(
                        response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
                    )
                )
        return True

    def _decrypted(self, stream: "TlsStream", data: bytes) -> bytes:
        try:
            return stream.received(data)
        finally:  # after an error too: an alert of TLS
            self._send(stream.to_send(b""))

    def _hinted(self, reason: str) -> str:
        return with_hint(reason, self._peer.statistics(), self._stream)

    def _transmit(self, data: bytes) -> None:
        self._send(data if self._stream is None else self._stream.to_send(data))

    def _send(self, data: bytes) -> None:
        try:
            self._sock.settimeout(self.timeout)
            self._sock.sendall(data)
        except TimeoutError:
            # Half a frame may have been sent: no other frame can follow it.
            self._lose(f"the peer did not take {len(data)} bytes within {self.timeout:g} s")
            self._check()
        except OSError as error:
            self._lose(sending_failed(error, self._peer.statistics(), self._sock, self._stream))
            self._check()

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = reason
            self._peer.lose()
            self._sock.close()

    def _check(self) -> None:
        if self._lost:
            raise ConnectionLost(self.address, self._lost)
