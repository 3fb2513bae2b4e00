"""Compressed bodies: Java's own bytes are read, ours have its flag bits, and broken or hostile ones
are refused.
"""

import gzip
import sys
import zlib

import lz4.frame
import pytest
import zstandard

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.compression import Compression, compress_body, plain_body

BODY = b"".join(b"hello-%d " % (number % 10) for number in range(500))
# What the compressors of RocketMQ 5.5.0 (org.apache.rocketmq.common.compression) make of BODY at
# level 5.
JAVA_LZ4 = bytes.fromhex(
    "04224d18607073480000008268656c6c6f2d30200800133108001332080013330800133408001335080013360800133708001338080013"
    "3908000f5000ffffffffffffffffffffffffffffff41506c6f2d392000000000"
)
JAVA_ZSTD = bytes.fromhex(
    "28b52ffd0058e4080036604010d0653860880f874a29a54c293deba0853c00390039005cd148dce58a46e22e57341277b9a291b8cb158d"
    "c45dae6824ee72452371972b1a89bb5cd148dce58a46e22e57341277b9a291b84b6180c1300404012b1a89bb5cd148dce58a46e22e5734"
    "1277b9a291b8cb158dc45dae6824ee72452371972b1a89bb5cd148dce58a46e22e57341277b9a291b81b452371972b1a89bb5cd148dce5"
    "8a46e22e57341277b9a291b8cb158dc45dae6824ee72452371972b1a89bb5cd148dce58a46e22e5734127719420106c3101008341277b9"
    "a291b8cb158dc45dae6824ee72452371972b1a89bb5cd148dce58a46e22e57341277b9a291b8cb158dc45dae6824ee720181f2a811e06f"
    "07e1af011128fc0149269964120ee1015515010000"
)
JAVA_ZLIB = bytes.fromhex(
    "785eedccb109c0201440c1555c403031463390f00b21fb7742780ba47fd5751773ad3797149f079e58f1c28637761cf8a09f9f9f9f9f9f"
    "9f9f9f9f9f9f9f9fdf9f6f03a3970c4a"
)


@pytest.mark.parametrize(
    ("data", "flags"), [(JAVA_LZ4, 0x101), (JAVA_ZSTD, 0x201), (JAVA_ZLIB, 0x301), (JAVA_ZLIB, 0x1)]
)
def test_java_s_bodies_are_read(data: bytes, flags: int) -> None:
    assert plain_body(data, flags) == BODY
    assert plain_body(data, flags & ~1) == data, "without the flag nothing is inflated"
    assert plain_body(data, flags, bytes_max=len(BODY)) == BODY
    with pytest.raises(RemoteProtocolError, match="more than 3999 bytes"):
        plain_body(data, flags, bytes_max=3999)
    for cut in (1, 5, len(data) // 2, len(data) - 1):
        with pytest.raises(RemoteProtocolError, match=r"ends too early|cannot be inflated"):
            plain_body(data[:cut], flags)
    with pytest.raises(RemoteProtocolError, match="cannot be inflated"):
        plain_body(b"certainly not compressed", flags)


def test_zlib_gives_java_s_bytes() -> None:
    assert compress_body(BODY, threshold_bytes=100) == (JAVA_ZLIB, 0x301)


@pytest.mark.parametrize("flags", [0x1, 0x301])
def test_gzip_of_grpc_clients_is_read_under_the_flags_of_zlib(flags: int) -> None:
    packed = gzip.compress(BODY)
    assert plain_body(packed, flags) == BODY
    with pytest.raises(RemoteProtocolError, match="ends too early"):
        plain_body(packed[:-9], flags)


@pytest.mark.parametrize(
    ("compression", "bits"),
    [(Compression.ZLIB, 0x301), (Compression.LZ4, 0x101), (Compression.ZSTD, 0x201)],
)
@pytest.mark.parametrize("size", [4096, 4097, 300_000])
def test_round_trips(compression: Compression, bits: int, size: int) -> None:
    body = (BODY * (size // len(BODY) + 1))[:size]
    packed, flags = compress_body(body, compression=compression)
    assert flags == bits
    assert len(packed) < size // 2
    assert plain_body(packed, flags) == body
    assert compress_body(body[:4095], compression=compression) == (body[:4095], 0)


@pytest.mark.parametrize(
    ("packed", "flags"),
    [
        (zlib.compress(bytes(1 << 26), 9), 0x301),
        (lz4.frame.compress(bytes(1 << 26)), 0x101),
        (zstandard.ZstdCompressor().compress(bytes(1 << 26)), 0x201),
    ],
    ids=["zlib", "lz4", "zstd"],
)
def test_bombs_are_refused_before_they_unfold(packed: bytes, flags: int) -> None:
    with pytest.raises(RemoteProtocolError, match="more than 1000 bytes"):
        plain_body(packed, flags, bytes_max=1000)


def test_names_in_any_case() -> None:
    assert Compression.of("zStd") is Compression.ZSTD
    assert Compression.of(Compression.LZ4) is Compression.LZ4
    with pytest.raises(LocalProtocolError, match="'snappy' is not known: use zlib, lz4 or zstd"):
        Compression.of("snappy")
    with pytest.raises(RemoteProtocolError, match="type 4"):
        plain_body(b"x", 0x401)


@pytest.mark.parametrize(
    ("name", "module", "data", "flags"),
    [("lz4", "lz4.frame", JAVA_LZ4, 0x101), ("zstd", "zstandard", JAVA_ZSTD, 0x201)],
)
def test_without_its_package_the_error_names_the_extra(
    name: str, module: str, data: bytes, flags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LocalProtocolError, match=rf"pip install 'triomq\[{name}\]'"):
        Compression.of(name)
    with pytest.raises(RemoteProtocolError, match=rf"pip install 'triomq\[{name}\]'"):
        plain_body(data, flags)
