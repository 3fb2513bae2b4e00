"""RPC hooks of a server: see every request between codec and pool, and may refuse it. The first of them verifies signatures.

A hook is a plain function of a `Request`; it raises Rejected(code, remark) to answer in the handler's place.  Any other exception is
logged and answered as SYSTEM_ERROR, so a hook that fails lets nothing through.  Hooks run in the codec's step: they must not wait.
A server without hooks pays one test of an empty tuple for each batch.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs

from triomq.remoting.errors import Rejected, RemotingError
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.signing import ACCESS_KEY, is_signed_by
from triomq.remoting.server.answers import error_remark, send_error
from triomq.remoting.server.handlers import Request

_log = logging.getLogger(__name__)

RequestHook: TypeAlias = Callable[[Request], None]


def passed(hooks: Sequence[RequestHook], requests: list[Request], limit: LogLimit) -> list[Request]:
    """The requests that every hook lets pass; the others are answered here. No checkpoint."""
    kept = []
    for request in requests:
        try:
            for hook in hooks:
                hook(request)
        except Rejected as error:
            send_error((request,), error.code, error.remark)
        except Exception as error:
            limit.log(
                _log,
                logging.ERROR,
                "a hook failed on a request of %s, which is refused",
                request.connection.peer_text,
                error=error,
            )
            send_error((request,), ResponseCode.SYSTEM_ERROR, error_remark(error))
        else:
            kept.append(request)
    return kept


@attrs.frozen
class VerifySignature:
    """Lets only signed requests pass; `secret_of` gives the secret key of an access key, None for an unknown one.

    The remarks are those of Java's ACL 1.0 (acl/…/plain/PlainPermissionManager.java), which refuses with SYSTEM_ERROR; ACL 2.0 does
    so with NO_PERMISSION, which says better what is wrong. Clients show the remark.
    """

    secret_of: Callable[[str], str | None]
    code: int = ResponseCode.NO_PERMISSION

    def __call__(self, request: Request) -> None:
        try:
            ext = request.ext()
        except RemotingError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
        access_key = ext.get(ACCESS_KEY)
        if not access_key:
            raise Rejected(self.code, "No accessKey is configured; sign requests with an access key and its secret key")
        secret = self.secret_of(access_key)
        if secret is None:
            raise Rejected(self.code, f"No acl config for accessKey={access_key}")
        if not is_signed_by(ext, request.body, secret, version=request.version):
            raise Rejected(self.code, f"Check signature failed for accessKey={access_key}")
