"""From the text of a Protobuf schema, as a registry has it, to the descriptor set of readers.

The compiler is protoc itself, which grpcio-tools brings, in a process of its own: a text that
stops it costs one schema, and its complaint becomes the reason of the bad rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

# Here rather than in the other process: a worker without it fails its task, and no row is bad.
import grpc_tools  # noqa: F401

OWN_FILE = "writer-of-the-body.proto"
COMPILE_SECONDS = 60.0
SCHEMAS_KEPT = 128


def compiled(texts: Mapping[str, bytes]) -> bytes | str:
    """Return the descriptor set of a schema, its own file last, or why it has none.

    ``texts``: those that it refers to by the names of their imports, and its own as ``""``.
    """
    return _compiled(tuple(texts.items()))


@lru_cache(SCHEMAS_KEPT)
def _compiled(texts: tuple[tuple[str, bytes], ...]) -> bytes | str:
    with tempfile.TemporaryDirectory(prefix="triomq-proto-") as name:
        sources, target = Path(name, "sources"), Path(name, "descriptors")
        for place, text in texts:
            relative = PurePosixPath(place or OWN_FILE)
            if relative.is_absolute() or ".." in relative.parts:
                return "it imports a file outside of the registry"
            path = sources / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{sources}", "--include_imports"]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={target}", OWN_FILE],
            capture_output=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())[:200]
            return f"protoc cannot compile it ({said})"
        return target.read_bytes()
