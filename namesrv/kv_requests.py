"""Requests about the key-value table. Source: namesrv/…/processor/DefaultRequestProcessor.java."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from triomq.namesrv.errors import KvFileError
from triomq.namesrv.kv import KvConfig
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.route import (
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

    def put_kv(self, request: Request) -> Response:
        """Store a value: PUT_KV_CONFIG (100)."""
        header: PutKvConfigHeader = request.header
        _saved(lambda: self.kv.put(header.namespace, header.key, header.value))
        return Response()

    def get_kv(self, request: Request) -> Response:
        """Return a value: GET_KV_CONFIG (101)."""
        header: KvConfigHeader = request.header
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            raise Rejected(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return Response(header=GetKvConfigResponseHeader(value))

    def delete_kv(self, request: Request) -> Response:
        """Remove a value, if it exists: DELETE_KV_CONFIG (102)."""
        header: KvConfigHeader = request.header
        _saved(lambda: self.kv.delete(header.namespace, header.key))
        return Response()

    def kv_namespace(self, request: Request) -> Response:
        """Return all values of a namespace: GET_KVLIST_BY_NAMESPACE (219)."""
        header: KvNamespaceHeader = request.header
        values = self.kv.namespace(header.namespace)
        if values is None:
            raise Rejected(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return Response(body=KvTable(dict(values)).encode())


def _saved(change: Callable[[], None]) -> None:
    try:
        change()
    except KvFileError as error:
        _log.error("%s", error)
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
