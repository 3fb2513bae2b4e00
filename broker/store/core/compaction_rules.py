"""CompactionRules: how the copies of compaction topics are kept, and what passes may cost."""

from __future__ import annotations

import attrs

KEY_BYTES = 150
"""Memory that a key takes while a pass looks for its newest record."""


@attrs.frozen(kw_only=True)
class CompactionRules:
    """The settings of all compaction topics. Java's names: ``compaction_settings.py``."""

    enabled: bool = True
    """False: such topics are like any others."""
    log_file_bytes: int = 100 * 1024 * 1024
    """Size of a file of copies; part of the format, as is that of its queue file."""
    queue_file_bytes: int = 10 * 1024 * 1024
    pass_interval_ms: int = attrs.field(default=900_000, validator=attrs.validators.ge(1))
    """Pause between two rounds of passes."""
    key_table_bytes_max: int = attrs.field(
        default=100 * 1024 * 1024, validator=attrs.validators.ge(KEY_BYTES)
    )
    """Limit of the memory in which a pass notes keys; the next pass goes on with further ones."""
    bytes_per_second: int = attrs.field(
        default=16 * 1024 * 1024, validator=attrs.validators.ge(1024)
    )
    """What passes may read and write together."""
    tombstone_ms: int = attrs.field(default=86_400_000, validator=attrs.validators.ge(0))
    """How long a message that deletes a key stays readable."""

    @property
    def keys_max(self) -> int:
        """Keys that a pass notes."""
        return self.key_table_bytes_max // KEY_BYTES
