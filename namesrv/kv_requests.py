"""Requests about the key-value table. Source: namesrv/…/processor/DefaultRequestProcessor.java."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import attrs

from triomq.namesrv.kv import KvConfig, KvFileError
from triomq.namesrv.missing_brokers import MissingBrokers
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.cluster import MISSING_BROKERS_NAMESPACE, KvTable
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.registration import (
    GetKvConfigResponseHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
)
from triomq.remoting.server.requests import Request, Response

_log = logging.getLogger(__name__)


@attrs.frozen
class KvRequests:
    """The handlers of requests about the key-value table."""

    kv: KvConfig
    missing: MissingBrokers
    now_ms: Callable[[], int]

    def put_kv(self, request: Request) -> Response:
        """Store a value: PUT_KV_CONFIG (100). Raises: Rejected for missing brokers."""
        header: PutKvConfigHeader = request.header
        if header.namespace == MISSING_BROKERS_NAMESPACE:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"namespace {header.namespace} tells which brokers are missing; it is not written",
            )
        _saved(lambda: self.kv.put(header.namespace, header.key, header.value))
        return Response()

    def get_kv(self, request: Request) -> Response:
        """Return a value: GET_KV_CONFIG (101)."""
        header: KvConfigHeader = request.header
        value = (self._namespace(header.namespace) or {}).get(header.key)
        if value is None:
            raise Rejected(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return Response(header=GetKvConfigResponseHeader(value))

    def delete_kv(self, request: Request) -> Response:
        """Remove a value, if it exists: DELETE_KV_CONFIG (102)."""
        header: KvConfigHeader = request.header
        if header.namespace == MISSING_BROKERS_NAMESPACE:
            self.missing.forget(header.key)
            _log.info(
                "%s made missing broker %s forgotten", request.connection.peer_text, header.key
            )
            return Response()
        _saved(lambda: self.kv.delete(header.namespace, header.key))
        return Response()

    def kv_namespace(self, request: Request) -> Response:
        """Return all values of a namespace: GET_KVLIST_BY_NAMESPACE (219)."""
        header: KvNamespaceHeader = request.header
        values = self._namespace(header.namespace)
        if values is None:
            raise Rejected(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return Response(body=KvTable(dict(values)).encode())

    def _namespace(self, namespace: str) -> Mapping[str, str] | None:
        if namespace == MISSING_BROKERS_NAMESPACE:
            return self.missing.values(self.now_ms())
        return self.kv.namespace(namespace)


def _saved(change: Callable[[], None]) -> None:
    try:
        change()
    except KvFileError as error:
        _log.error("%s", error)
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
