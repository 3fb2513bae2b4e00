"""Request hooks: functions that see every request between codec and pool, and may refuse it.

A hook is a synchronous function that takes a ``Request``. To refuse the request, it raises
Rejected(code, remark), and the server answers with both. Any other exception is logged and answered
with SYSTEM_ERROR, so a hook that fails lets no request through. A hook must not block: it runs in
the loop, while the codec handles a batch. Without hooks a batch costs one test of an empty tuple.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs

from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.signing import ACCESS_KEY, is_signed_by
from triomq.remoting.server.answers import error_remark, send_error
from triomq.remoting.server.requests import Request

_log = logging.getLogger(__name__)

RequestHook: TypeAlias = Callable[[Request], None]


def run_hooks(
    hooks: Sequence[RequestHook], requests: list[Request], limit: LogLimit
) -> list[Request]:
    """Return the requests that every hook accepts, and answer the others with an error."""
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
                "refused a request from %s: a request hook failed",
                request.connection.peer_text,
                error=error,
            )
            send_error((request,), ResponseCode.SYSTEM_ERROR, error_remark(error))
        else:
            kept.append(request)
    return kept


@attrs.frozen
class VerifySignature:
    """A hook that refuses every request without a valid signature.

    ``secret_of`` returns the secret key of an access key; None if the access key is unknown.

    The remarks are those of Java's ACL 1.0, since clients show them. The code is ACL 2.0's
    NO_PERMISSION, which is clearer than the SYSTEM_ERROR of ACL 1.0.

    Source: acl/…/plain/PlainPermissionManager.java.
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
            raise Rejected(
                self.code,
                "No accessKey is configured; sign requests with an access key and its secret key",
            )
        secret = self.secret_of(access_key)
        if secret is None:
            raise Rejected(self.code, f"No acl config for accessKey={access_key}")
        local = request.connection.local
        if not is_signed_by(ext, request.body, secret, version=request.version, by_date=local):
            raise Rejected(self.code, f"Check signature failed for accessKey={access_key}")
