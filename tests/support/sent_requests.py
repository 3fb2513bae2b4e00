"""What a producer really sent: a send hook that counts requests with a batch and requests with one
message, and the compressions of stored bodies.
"""

from __future__ import annotations

from triomq.client.core.message_hooks import SendContext

COMPRESSION_BITS = 0x701
"""The bits of sysFlag that speak of compression: bit 0 says compressed, bits 8 to 10 by what."""
COMPRESSED_FLAG = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
"""What a body that was compressed so has in these bits. Source: common/sysflag/MessageSysFlag.java,
common/compression/CompressionType.java.
"""


class SentRequests:
    """A send hook."""

    def __init__(self) -> None:
        self.batches = 0
        self.singles = 0

    def before_send(self, context: SendContext) -> None:
        if context.batch:
            self.batches += 1
        else:
            self.singles += 1

    def after_send(self, context: SendContext) -> None:
        """Do nothing: what is sent counts, not how it ends."""
