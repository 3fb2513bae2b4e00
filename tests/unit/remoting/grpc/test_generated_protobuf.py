"""The generated classes of RocketMQ's gRPC protocol."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from triomq.remoting.grpc.apache_rocketmq import definition_pb2, service_pb2

ROOT = Path(__file__).parents[4]


def test_generated_modules_are_current() -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools, which has the compiler, is not installed")
    spec = importlib.util.spec_from_file_location(
        "generate_protobuf", ROOT / "tests" / "generate_protobuf.py"
    )
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    stale = [
        name
        for name, text in generator.generated().items()
        if (generator.FOLDER / name).read_text() != text
    ]
    assert stale == [], "call `make protobuf`"


def test_all_methods_of_release_2_1_2() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
    kinds = {
        method.name: (method.client_streaming, method.server_streaming)
        for method in service.methods
    }
    assert len(kinds) == 17
    assert [name for name, kind in kinds.items() if kind == (True, True)] == ["Telemetry"]
    streams = [name for name, kind in kinds.items() if kind == (False, True)]
    assert streams == ["ReceiveMessage", "PullMessage"]


def test_a_message_is_these_bytes() -> None:
    """By hand: field 1, a resource; field 5, a duration of 30 s; field 6, true."""
    request = service_pb2.ReceiveMessageRequest(
        group=definition_pb2.Resource(name="g"),
        invisible_duration=timedelta(seconds=30),
        auto_renew=True,
    )
    data = bytes.fromhex("0a03 1201 67  2a02 081e  3001")
    assert request.SerializeToString(deterministic=True) == data
    read = service_pb2.ReceiveMessageRequest.FromString(data)
    assert read == request
    assert read.invisible_duration.ToMilliseconds() == 30_000


def test_another_package_may_have_the_same_protocol() -> None:
    """RocketMQ's Python client puts its classes into the default pool, in an older release."""
    script = """
from google.protobuf import descriptor_pb2, descriptor_pool
from triomq.remoting.grpc.apache_rocketmq import definition_pb2

theirs = descriptor_pb2.FileDescriptorProto.FromString(definition_pb2.DESCRIPTOR.serialized_pb)
del theirs.message_type[-1]
default = descriptor_pool.Default()
default.AddSerializedFile(theirs.SerializeToString())
found = default.FindMessageTypeByName("apache.rocketmq.v2.Resource")
print(found is not definition_pb2.Resource.DESCRIPTOR)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
