"""Every JSON body class of the catalogue of requests: what is fuzzed, and what gets a worst
input.
"""

from __future__ import annotations

from body_catalogue import BODIES, ArrayOf

from triomq.remoting.protocol.bodies.schema import JsonBody

JSON_BODIES = sorted(
    {
        cls
        for pair in BODIES.values()
        for cls in (body.member if isinstance(body, ArrayOf) else body for body in pair)
        if isinstance(cls, type) and issubclass(cls, JsonBody)
    },
    key=lambda cls: cls.__name__,
)
