"""All errors between two peers, as one tree.

::

    RemotingError
    ├── ProtocolError
    │   ├── LocalProtocolError     this side built something that the wire cannot carry: a bug here
    │   └── RemoteProtocolError    the peer sent something invalid
    │       ├── FrameError         the next frame cannot be found: close the connection
    │       └── HeaderFieldError   a field is missing or unreadable: answer the request, go on
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
    """Bytes that violate the protocol."""


class LocalProtocolError(ProtocolError):
    """A caller on this side passed something that the protocol cannot express."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something invalid; *reason* is the cause, *fix* what to do about it."""

    def __init__(
        self, reason: str, fix: str = "check that the peer speaks the RocketMQ remoting protocol"
    ) -> None:
        super().__init__(f"{reason}; {fix}")
        self.reason = reason
        self.fix = fix


class FrameError(RemoteProtocolError):
    """The next frame of a byte stream cannot be found.

    *frames* are the valid frames before the damage in the same piece of input.
    """

    def __init__(self, reason: str, fix: str, frames: Sequence[bytes] = ()) -> None:
        super().__init__(reason, fix)
        self.frames = list(frames)


class HeaderFieldError(RemoteProtocolError):
    """A header field is missing or unreadable in a valid frame.

    A server can still answer: *code*, *opaque* and *flag* are those of the frame, or -1, 0 and 0
    if the fields were read without a frame.
    """

    def __init__(
        self, reason: str, fix: str, *, code: int = -1, opaque: int = 0, flag: int = 0
    ) -> None:
        super().__init__(reason, fix)
        self.code = code
        self.opaque = opaque
        self.flag = flag

    def for_frame(self, code: int, opaque: int, flag: int) -> "HeaderFieldError":
        """Return the same error with the numbers of its frame."""
        return HeaderFieldError(self.reason, self.fix, code=code, opaque=opaque, flag=flag)


class TlsFailed(RemotingError):
    """TLS with the peer failed; *reason* is the cause, *fix* what to do about it."""

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
    """The connection to *address* ended before the answer; the request may still take effect."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason


class RequestTimeout(RemotingError, TimeoutError):
    """*address* did not answer request *code* within *seconds*; it may still carry it out."""

    def __init__(self, address: str, code: int, seconds: float) -> None:
        super().__init__(f"{address} did not answer request {code} within {seconds:g} s")
        self.address = address
        self.code = code
        self.seconds = seconds


class Rejected(RemotingError):
    """Raised by a request handler to answer with an error *code* and a *remark*."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"[{code}] {remark}")
        self.code = code
        self.remark = remark
