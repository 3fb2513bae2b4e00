"""The header of a request for the route of a topic: 105.

Alone in its module, which every client loads.

Source: remoting/…/header/namesrv/GetRouteInfoRequestHeader.java.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class GetRouteHeader:
    topic: str = wire("topic")
    accept_standard_json_only: bool | None = wire("acceptStandardJsonOnly", default=None)
