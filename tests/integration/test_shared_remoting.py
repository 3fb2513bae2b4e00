"""One remoting package under all services, seen in real processes: who loads what."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVICES = {
    "triomq.namesrv.app": {"triomq.remoting.server.server"},
    "triomq.broker.app": {"triomq.remoting.server.server", "triomq.remoting.client.connector"},
    "triomq.client.session": {"triomq.remoting.client.connector"},
}
PACKAGES = ("triomq.namesrv", "triomq.broker", "triomq.client")


def loaded_by(module: str) -> set[str]:
    program = f"import sys, importlib; importlib.import_module({module!r}); print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.feature(20)
@pytest.mark.parametrize("service", list(SERVICES))
def test_every_service_stands_on_the_same_remoting_package_and_on_no_other_service(service: str) -> None:
    modules = loaded_by(service)
    own = next(package for package in PACKAGES if service.startswith(package))
    assert modules >= SERVICES[service] | {"triomq.remoting.protocol.command"}
    assert not {name for name in modules if name.startswith(PACKAGES) and not name.startswith(own)}


@pytest.mark.feature(20)
@pytest.mark.parametrize("part", ["triomq.remoting.server.server", "triomq.remoting.client.connector", "triomq.remoting.client.blocking"])
def test_remoting_loads_no_service(part: str) -> None:
    assert not {name for name in loaded_by(part) if name.startswith(PACKAGES)}


def test_services_do_not_load_what_they_do_not_need() -> None:
    """Start-up time: these cost tens to hundreds of milliseconds each."""
    for service in ("triomq.namesrv.app", "triomq.broker.app"):
        assert not {"rich", "cryptography", "pyspark", "pyarrow", "numpy"} & loaded_by(service)
