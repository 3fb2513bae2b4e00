"""Everything that can go wrong between two peers, as one tree.

RemotingError
├── ProtocolError
│   ├── LocalProtocolError     we tried to build something that the wire cannot carry: a bug on our side
│   └── RemoteProtocolError    the peer sent something illegal
│       ├── FrameError         the byte stream cannot be followed any further: close the connection
│       └── HeaderFieldError   one request has a missing or unreadable field: answer it, go on
├── TlsFailed                  the peers cannot agree on a secure connection: close it
├── ConnectFailed              also OSError
├── ConnectionLost             also OSError
├── RequestTimeout             also TimeoutError
└── Rejected                   raised by request handlers; becomes the response
"""

from collections.abc import Sequence


class RemotingError(Exception):
    """Base of every error of this package."""


class ProtocolError(RemotingError):
    """Bytes and rules do not agree."""


class LocalProtocolError(ProtocolError):
    """We were asked to build something that the protocol cannot express."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal; *reason* says what, *fix* what its owner can do about it."""

    def __init__(self, reason: str, fix: str = "check that the peer speaks the RocketMQ remoting protocol") -> None:
        super().__init__(f"{reason}; {fix}")
        self.reason = reason
        self.fix = fix


class FrameError(RemoteProtocolError):
    """The byte stream cannot be followed any further.

    *frames* are the whole frames that came before the damage in the same piece of input; they are still good.
    """

    def __init__(self, reason: str, fix: str, frames: Sequence[bytes] = ()) -> None:
        super().__init__(reason, fix)
        self.frames = list(frames)


class HeaderFieldError(RemoteProtocolError):
    """A frame is sound, but a header field is missing or unreadable.

    A server can still answer: *code*, *opaque* and *flag* are those of the frame, or -1, 0 and 0 when the
    fields were read apart from a frame.
    """

    def __init__(self, reason: str, fix: str, *, code: int = -1, opaque: int = 0, flag: int = 0) -> None:
        super().__init__(reason, fix)
        self.code = code
        self.opaque = opaque
        self.flag = flag

    def for_frame(self, code: int, opaque: int, flag: int) -> "HeaderFieldError":
        """The same complaint, tied to the frame it was found in."""
        return HeaderFieldError(self.reason, self.fix, code=code, opaque=opaque, flag=flag)


class TlsFailed(RemotingError):
    """TLS with the peer failed; *reason* says why, *fix* what somebody can do about it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}; {fix}")
        self.reason = reason
        self.fix = fix


class ConnectFailed(RemotingError, OSError):
    """No connection to *address* could be made."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(RemotingError, OSError):
    """The connection to *address* ended while it was needed; the request may or may not have been carried out."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason


class RequestTimeout(RemotingError, TimeoutError):
    """*address* did not answer the request *code* within *seconds*; it may still carry it out."""

    def __init__(self, address: str, code: int, seconds: float) -> None:
        super().__init__(f"{address} did not answer request {code} within {seconds:g} s")
        self.address = address
        self.code = code
        self.seconds = seconds


class Rejected(RemotingError):
    """A request handler's way to answer with an error *code* and a *remark*."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"[{code}] {remark}")
        self.code = code
        self.remark = remark
