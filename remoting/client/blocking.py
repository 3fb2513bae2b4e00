"""A connection for threads without an event loop (Spark executors, scripts): plain sockets, the same protocol core.

Requests can be pipelined: `invoke_all`, or `send` several and then `receive` their answers in the order in which they are needed. One
thread at a time may use a connection.
"""

import math
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import attrs

from triomq.remoting.address import parse_address
from triomq.remoting.client.ends import with_hint
from triomq.remoting.client.hooks import RpcHook
from triomq.remoting.client.proxies import SocksProxies, dial_through_blocking
from triomq.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RemotingError,
    RequestTimeout,
    TlsFailed,
)
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, encode_command, response_to
from triomq.remoting.protocol.peer import ClientPeer, PeerStatistics
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls

if TYPE_CHECKING:
    from triomq.remoting.tls.stream import TlsStream

_READ_BYTES = 64 * 1024


@attrs.define(eq=False)
class BlockingConnection:
    """Connects at once; ConnectFailed if that does not work within *timeout* seconds.

    After RequestTimeout the connection goes on: the late answer is dropped. After ConnectionLost only `reconnect` helps. When a server
    that stops answers GO_AWAY, `invoke` connects anew and asks once more; `receive` gives that answer to its caller.
    """

    address: str
    timeout: float = attrs.field(default=3.0, kw_only=True)
    tls: Tls | None = attrs.field(default=None, kw_only=True)
    socks: SocksProxies = attrs.field(default=SocksProxies(), kw_only=True)
    hooks: Sequence[RpcHook] = attrs.field(default=(), kw_only=True)
    _sock: socket.socket = attrs.field(init=False)
    _stream: "TlsStream | None" = attrs.field(default=None, init=False)
    _peer: ClientPeer[None] = attrs.field(factory=ClientPeer, init=False)
    _codes: dict[int, int] = attrs.field(
        factory=dict, init=False
    )  # opaque -> request code, of answers not yet received
    _asked: dict[int, Command] = attrs.field(factory=dict, init=False)  # the same with the requests, for hooks
    _answers: dict[int, Command] = attrs.field(factory=dict, init=False)
    _lost: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._connect()

    def _connect(self) -> None:
        host, port = parse_address(self.address)
        proxy = self.socks.for_host(host)
        try:
            if proxy is None:
                self._sock = socket.create_connection((host, port), self.timeout)
            else:
                self._sock = dial_through_blocking(proxy, host, port, self.timeout)
        except TimeoutError:
            raise ConnectFailed(self.address, f"no answer within {self.timeout:g} s") from None
        except OSError as error:
            raise ConnectFailed(self.address, error.strerror or str(error)) from None
        except RemoteProtocolError as error:
            raise ConnectFailed(self.address, str(error)) from None
        if self._sock.getsockname() == self._sock.getpeername():
            # An ephemeral port can meet itself while nobody listens there.
            self._sock.close()
            raise ConnectFailed(self.address, "Connection refused")
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is not None:
            self._secure(self.tls, host)

    def _secure(self, tls: Tls, host: str) -> None:
        from triomq.remoting.client.secure import secure_blocking  # ssl, only with TLS
        from triomq.remoting.tls.contexts import current_client_context  # ssl, only with TLS

        try:
            self._stream = secure_blocking(self._sock, current_client_context(tls), host)
        except TimeoutError:
            self._sock.close()
            raise ConnectFailed(self.address, f"no TLS handshake within {self.timeout:g} s") from None
        except OSError as error:
            self._sock.close()
            raise ConnectFailed(self.address, error.strerror or str(error)) from None
        except (TlsFailed, ConfigError) as error:
            self._sock.close()
            raise ConnectFailed(self.address, str(error)) from None

    def __enter__(self) -> "BlockingConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return bool(self._lost)

    def invoke(self, command: Command, timeout: float = 3.0) -> Command:
        """Send a request and wait for its answer. Raises ConnectionLost, RequestTimeout; ConnectFailed after GO_AWAY."""
        answer = self.receive(self.send(command), timeout)
        if answer.code != ResponseCode.GO_AWAY or self._codes or self._lost:
            return answer  # answers to other requests may still come over this connection
        self.reconnect()
        return self.receive(self.send(command), timeout)

    def invoke_all(
        self, commands: Iterable[Command], timeout: float = 3.0, *, in_flight_max: int = 64
    ) -> list[Command]:
        """Send requests without waiting for each answer; all answers, in the order of the requests.

        At most *in_flight_max* wait at a time, so that neither side's buffers fill up. *timeout* is for each answer. Raises as
        `invoke`; what is still under way is given up then. GO_AWAY is an answer like any other here.
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
        """Close, forget what was under way, and connect anew. Raises ConnectFailed; it may be called again then."""
        self._lose("connecting anew")
        for forgotten in (self._codes, self._asked, self._answers):
            forgotten.clear()
        self._peer = ClientPeer(first_opaque=self._peer.next_opaque)
        self._stream = None
        self._connect()
        self._lost = ""

    def send(self, command: Command) -> int:
        """Send a request; the number by which `receive` finds its answer. Raises ConnectionLost."""
        self._check()
        for hook in self.hooks:
            hook.before_request(self.address, command)
        pending, data = self._peer.send(command, None, math.inf)
        self._codes[pending.opaque] = int(command.code)
        if self.hooks:
            self._asked[pending.opaque] = command
        self._transmit(data)
        return pending.opaque

    def oneway(self, command: Command) -> None:
        """Send a request that is never answered. Raises ConnectionLost."""
        self._check()
        for hook in self.hooks:
            hook.before_request(self.address, command)
        self._transmit(self._peer.send_oneway(command))

    def receive(self, opaque: int, timeout: float = 3.0) -> Command:
        """The answer to a request sent before; answers to others are kept until they are asked for.

        Raises ConnectionLost, RequestTimeout (the request is given up then), KeyError for a number that is not waited for.
        """
        code = self._codes[opaque]
        deadline = time.monotonic() + timeout
        while opaque not in self._answers:
            self._check()
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                self.give_up(opaque)
                raise RequestTimeout(self.address, code, timeout)
        del self._codes[opaque]
        answer = self._answers.pop(opaque)
        for hook in self.hooks:
            hook.after_response(self.address, self._asked[opaque], answer)
        self._asked.pop(opaque, None)
        return answer

    def give_up(self, opaque: int) -> None:
        """Wait no longer for the answer to a request sent before; it is dropped when it comes."""
        self._peer.give_up(opaque)
        for forgotten in (self._codes, self._asked, self._answers):
            forgotten.pop(opaque, None)

    def statistics(self) -> PeerStatistics:
        """Counters since the connection was made: sent, replied, late and so on."""
        return self._peer.statistics()

    def close(self) -> None:
        """Close; may be called again."""
        self._lose("closed by this side")

    def _read(self, seconds: float) -> bool:
        """Read once; False if nothing came in time."""
        try:
            self._sock.settimeout(seconds)
            data = self._sock.recv(_READ_BYTES)
        except TimeoutError:
            return False
        except OSError as error:
            self._lose(self._hinted(f"reading failed: {error.strerror or error}"))
            return True
        if not data:
            self._lose(self._hinted("the peer closed the connection"))
            return True
        try:
            if self._stream is not None:
                data = self._decrypted(self._stream, data)
            received = self._peer.receive(data)
        except RemotingError as error:
            self._lose(str(error))
            return True
        for pending, answer in received.replies:
            self._answers[pending.opaque] = answer
        for request in received.requests:
            if not request.is_oneway:  # nobody listens for requests of the server here
                remark = f" request type {request.code} not supported"
                self._transmit(
                    encode_command(response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
                )
        return True

    def _decrypted(self, stream: "TlsStream", data: bytes) -> bytes:
        try:
            return stream.received(data)
        finally:  # an error has last words, too
            self._send(stream.to_send(b""))

    def _hinted(self, reason: str) -> str:
        return with_hint(reason, self._peer.statistics(), tls=self.tls is not None)

    def _why(self, reason: str) -> str:
        if self._stream is None:
            return self._hinted(reason)
        from triomq.remoting.client.secure import last_words  # ssl, only with TLS

        return last_words(self._sock, self._stream, self._hinted(reason))

    def _transmit(self, data: bytes) -> None:
        self._send(data if self._stream is None else self._stream.to_send(data))

    def _send(self, data: bytes) -> None:
        try:
            self._sock.settimeout(self.timeout)
            self._sock.sendall(data)
        except TimeoutError:
            # Half a frame may be on the way: nothing sensible can follow it.
            self._lose(f"the peer did not take {len(data)} bytes within {self.timeout:g} s")
            self._check()
        except OSError as error:
            self._lose(self._why(f"sending failed: {error.strerror or error}"))
            self._check()

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = reason
            self._peer.lose()
            self._sock.close()

    def _check(self) -> None:
        if self._lost:
            raise ConnectionLost(self.address, self._lost)
