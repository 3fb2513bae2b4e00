"""Bits of ``sysFlag``: compression, transaction state, address families, inner batches.

Source: common/…/sysflag/MessageSysFlag.java.
"""

COMPRESSED = 0x1
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
COMPRESSION_MASK = 0x700
"""How the body is compressed, if COMPRESSED is set; 0 means zlib, too: old clients set no type."""
