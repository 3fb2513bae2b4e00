"""Write the classes of remoting/grpc/apache_rocketmq from its .proto files (`make protobuf`).

    python tests/generate_protobuf.py

The compiler is that of grpcio-tools, whose version is pinned in the extra `dev`. Its output is
changed in three points: the modules are imported as triomq.…, the descriptors are in a pool of our
own, and the check of protobuf's version is left out. It would demand a runtime at least as new as
the compiler; what the modules use, a serialized descriptor and protobuf's builder, is older than
all versions that the extra `grpc` allows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "remoting" / "grpc" / "apache_rocketmq"
PACKAGE = "triomq.remoting.grpc.apache_rocketmq"
PROTO_PATH = "apache/rocketmq/v2"
NAMES = ("definition", "service")
_VERSION_CHECK = re.compile(
    r"from google\.protobuf import runtime_version as _runtime_version\n"
    r"|_runtime_version\.ValidateProtobufRuntimeVersion\(.*?^\)\n",
    re.DOTALL | re.MULTILINE,
)
_POOL_IMPORT = "from google.protobuf import descriptor_pool as _descriptor_pool\n"


def generated() -> dict[str, str]:
    """Return the text of each generated file by its name."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        (source / PROTO_PATH).mkdir(parents=True)
        target.mkdir()
        protos = [f"{PROTO_PATH}/{name}.proto" for name in NAMES]
        for name in NAMES:
            text = (FOLDER / f"{name}.proto").read_text()
            (source / PROTO_PATH / f"{name}.proto").write_text(text)
        outputs = (f"--python_out={target}", f"--pyi_out={target}")
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", *outputs, *protos],
            check=True,
        )
        return {
            f"{name}_pb2{suffix}": _ours(name, (target / PROTO_PATH / f"{name}_pb2{suffix}"))
            for name in NAMES
            for suffix in (".py", ".pyi")
        }


def _ours(name: str, path: Path) -> str:
    text = path.read_text()
    text = text.replace("from apache.rocketmq.v2 import", f"from {PACKAGE} import")
    if path.suffix == ".py":
        text = _VERSION_CHECK.sub("", text)
        text = text.replace(_POOL_IMPORT, f"from {PACKAGE}.pool import POOL as _POOL\n")
        text = text.replace("_descriptor_pool.Default()", "_POOL")
        assert "_runtime_version" not in text
        assert "_descriptor_pool." not in text
    return f"{_licence(name)}\n{text}"


def _licence(name: str) -> str:
    """Return the licence at the head of a .proto file, as a comment of Python."""
    lines = (FOLDER / f"{name}.proto").read_text().splitlines()
    head = lines[: lines.index("")]
    assert all(line.startswith("//") for line in head)
    return "".join(f"#{line[2:]}\n" for line in head)


def main() -> None:
    for name, text in generated().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
