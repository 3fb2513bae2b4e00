"""Access control at the door of a server: the request hook that asks ``remoting/access``.

The hook verifies who sends a request, and refuses it unless that user may do what its header needs.
Where the body says what is needed, the handler that decodes the body asks ``require_for_body``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.needs import BODY_NEEDS, HEADER_NEEDS, FromBody, FromHeader
from triomq.remoting.access.resources import Action, Need, topic_need
from triomq.remoting.access.users import refused
from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.server.requests import Request

logger = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class AccessCheck:
    """The hook. It leaves the user in ``Request.user``."""

    control: AccessControl
    header_needs: Mapping[int, FromHeader] = HEADER_NEEDS
    body_needs: Mapping[int, FromBody] = BODY_NEEDS
    limit: LogLimit = attrs.field(factory=LogLimit)

    def __call__(self, request: Request) -> None:
        """Refuse a request that its sender may not make. Raises: Rejected."""
        if request.connection.local:
            return  # a call of the gRPC service, which has checked it
        try:
            ext = request.ext()
        except RemotingError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
        try:
            self._check(request, ext)
        except Rejected as error:
            log_refusal(
                self.limit, f"request {int(request.code)}", request.connection.peer_text, error
            )
            raise

    def _check(self, request: Request, ext: Mapping[str, str]) -> None:
        code = int(request.code)
        control = self.control
        request.user = control.identify(code, ext, request.body, request.version)
        needs = self.header_needs.get(code)
        if needs is not None:
            control.require(
                request.user,
                needs(request.header, control.cluster_name),
                request.connection.peer[0],
                code,
            )
        elif code not in self.body_needs:
            raise refused(f"request code {code} has no entry in the table of access control.")

    def require_message(self, request: Request, message: StoredMessage, *actions: Action) -> None:
        """Refuse a request that names a message by its place in the log, unless its user may do one
        of *actions* on the topic of that message. Raises: Rejected.
        """
        topic = message.topic
        if topic in (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC):
            topic = message.properties.get(REAL_TOPIC, topic)
        self._require(request, [topic_need(topic, *actions)])

    def require_for_body(self, request: Request, body: Any) -> None:
        """Refuse a request that needs more for its body than its user may. Raises: Rejected."""
        needs = self.body_needs.get(int(request.code))
        if needs is not None:
            self._require(request, needs(body))

    def _require(self, request: Request, needs: Iterable[Need]) -> None:
        if request.connection.local:
            return
        code, connection = int(request.code), request.connection
        try:
            self.control.require(request.user, needs, connection.peer[0], code)
        except Rejected as error:
            log_refusal(self.limit, f"request {code}", connection.peer_text, error)
            raise


def log_refusal(limit: LogLimit, what: str, peer: str, error: Rejected) -> None:
    """Say who was refused: one line in ten seconds, however many there are."""
    limit.warning(logger, "refused %s from %s: %s", what, peer, error.remark)
