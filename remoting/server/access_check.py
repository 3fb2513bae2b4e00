"""Access control at the door of a server: the request hook that asks ``remoting/access``.

The hook verifies who sends a request, and refuses it unless that user may do what its header needs.
Where the body says what is needed, the handler that decodes the body asks ``require_for_body``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.needs import BODY_NEEDS, HEADER_NEEDS, FromBody, FromHeader
from triomq.remoting.access.resources import Action, Need, topic_need
from triomq.remoting.access.users import AccessUser, refused
from triomq.remoting.audit.decision_notes import Asked, DecisionNotes
from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request

NO_FIELDS: Mapping[str, str] = {}


@attrs.frozen(eq=False)
class AccessCheck:
    """The hook. It leaves the user in ``Request.user``."""

    notes: DecisionNotes
    header_needs: Mapping[int, FromHeader] = HEADER_NEEDS
    body_needs: Mapping[int, FromBody] = BODY_NEEDS
    control: AccessControl = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.notes.control, takes_self=True)
    )

    def __call__(self, request: Request) -> None:
        """Refuse a request that its sender may not make. Raises: Rejected."""
        if request.connection.local:
            return  # a call of the gRPC service, which has checked it
        ext = NO_FIELDS
        if self.control.authenticates:
            try:
                ext = request.ext()
            except RemotingError as error:
                raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
        code = int(request.code)
        try:
            self._check(request, code, ext)
        except Rejected as error:
            needs = self._needs(request, code)
            self.notes.refused(_asked(request, code), error, request.user, ext, needs)
            raise
        if code not in self.body_needs and self.notes.wants(code):
            needs = self._needs(request, code)
            self.notes.allowed(_asked(request, code), request.user, needs)

    def _check(self, request: Request, code: int, ext: Mapping[str, str]) -> None:
        control = self.control
        address = request.connection.peer[0]
        connection = request.connection
        request.user = control.identify(
            code,
            ext,
            request.body,
            request.version,
            address=address,
            certificate=connection.certificate_name() if control.certificate_users else "",
        )
        control.require_place(code, address)
        needs = self.header_needs.get(code)
        if needs is None:
            if code not in self.body_needs:
                raise refused(f"request code {code} has no entry in the table of access control.")
        elif control.authorizes:
            found = needs(request.header, control.cluster_name)
            control.require(request.user, found, address, code)

    def _needs(self, request: Request, code: int) -> Sequence[Need]:
        """Return what the header of a request needs, for the audit log."""
        needs = self.header_needs.get(code)
        return () if needs is None else tuple(needs(request.header, self.control.cluster_name))

    def require_message(self, request: Request, message: StoredMessage, *actions: Action) -> None:
        """Refuse a request that names a message by its place in the log, unless its user may do one
        of *actions* on the topic of that message. Raises: Rejected.
        """
        topic = message.topic
        if topic in (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC, CHECK_MAX_TIME_TOPIC):
            topic = message.properties.get(REAL_TOPIC, topic)
        self._require(request, [topic_need(topic, *actions)])

    def may_send(self, user: AccessUser | None, connection: Connection, topic: str) -> bool:
        """Return whether a producer that has registered may learn of messages of a topic.

        ``user``: None for one that this hook has not asked: the gRPC service has checked it.
        Checkpoint: never.
        """
        if user is None or connection.local or not self.control.authorizes:
            return True
        need = topic_need(topic, Action.PUB)
        return self.control.decide(user, need, connection.peer[0]).allowed

    def require_for_body(self, request: Request, body: object) -> None:
        """Refuse a request that needs more for its body than its user may. Raises: Rejected."""
        needs = self.body_needs.get(int(request.code))
        if needs is None or request.connection.local:
            return
        found = tuple(needs(body))
        self._require(request, found)
        code = int(request.code)
        if self.notes.wants(code):
            self.notes.allowed(_asked(request, code), request.user, found)

    def _require(self, request: Request, needs: Sequence[Need]) -> None:
        if request.connection.local:
            return
        code, connection = int(request.code), request.connection
        try:
            self.control.require(request.user, needs, connection.peer[0], code)
        except Rejected as error:
            asked = _asked(request, code)
            self.notes.refused(asked, error, request.user, NO_FIELDS, needs)
            raise


def _asked(request: Request, code: int) -> Asked:
    try:
        what = RequestCode(code).name
    except ValueError:
        what = f"request {code}"
    return Asked("remoting", what, request.connection.peer, code, request.header)
