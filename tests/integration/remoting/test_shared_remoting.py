"""One remoting package below all services, and the layers of the broker, in real processes: which
modules they load.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SERVICES = {
    "triomq.namesrv.app": {"triomq.remoting.server.server"},
    "triomq.broker.app": {"triomq.remoting.server.server", "triomq.remoting.client.connector"},
    "triomq.client.core.session": {"triomq.remoting.client.connector"},
}
PACKAGES = ("triomq.namesrv.", "triomq.broker.", "triomq.client.")
"""With the dot: ``triomq`` itself loads ``triomq.client``, whose ``__init__`` lists the SDK's names
and loads none of them.
"""
NAMES = "triomq.client.shared_names"
"""The rest of that list: ``triomq`` loads it, and it loads no module of TrioMQ."""
LAYERS = (
    "triomq.remoting.server",
    "triomq.broker.processors",
    "triomq.broker.services",
    "triomq.broker.replication",
    "triomq.broker.store",
)
"""Access, processing (requests, then state), HA, store: each may use those behind it."""
PARTS = {
    "remoting": (
        "triomq.remoting.server.server",
        "unit/remoting/server/test_server_boss.py",
        "triomq.remoting.server",
    ),
    "client manager": (
        "triomq.broker.services.groups",
        "unit/broker/services/test_client_groups.py",
        "triomq.broker.services.groups",
    ),
    "store": (
        "triomq.broker.store.store",
        "unit/broker/store/test_store.py",
        "triomq.broker.store",
    ),
    "HA": (
        "triomq.broker.replication.master",
        "unit/broker/replication/test_links.py",
        "triomq.broker.replication",
    ),
    "index": (
        "triomq.broker.store.keys.index",
        "unit/broker/store/test_key_index.py",
        "triomq.broker.store.keys.index",
    ),
}
"""Part of the broker: its module, the first file of its own tests, and what that one must import.
"""
TESTS = Path(__file__).resolve().parents[2]


def loaded_by(module: str) -> set[str]:
    """Return the modules that a process has after one import, without the list of names."""
    program = f"import sys, importlib; importlib.import_module({module!r}); print(*sys.modules)"
    modules = set(
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    return modules - {NAMES}


def test_the_package_itself_loads_names_only() -> None:
    modules = loaded_by("triomq")
    assert {name for name in modules if name.startswith("triomq")} == {"triomq", "triomq.client"}
    assert "trio" not in modules


@pytest.mark.feature("20a")
@pytest.mark.parametrize("service", list(SERVICES))
def test_every_service_stands_on_the_same_remoting_package_and_on_no_other_service(
    service: str,
) -> None:
    modules = loaded_by(service)
    own = next(package for package in PACKAGES if service.startswith(package))
    assert modules >= SERVICES[service] | {"triomq.remoting.protocol.command"}
    assert not {name for name in modules if name.startswith(PACKAGES) and not name.startswith(own)}


@pytest.mark.feature("20b")
@pytest.mark.parametrize(
    "part",
    [
        "triomq.remoting.server.server",
        "triomq.remoting.client.connector",
        "triomq.remoting.client.blocking",
    ],
)
def test_remoting_loads_no_service(part: str) -> None:
    assert not {name for name in loaded_by(part) if name.startswith(PACKAGES)}


def test_services_do_not_load_what_they_do_not_need() -> None:
    """Start-up time: these cost tens to hundreds of milliseconds each."""
    for service in ("triomq.namesrv.app", "triomq.broker.app"):
        assert not {"rich", "cryptography", "pyspark", "pyarrow", "numpy"} & loaded_by(service)


@pytest.mark.feature("13a")
@pytest.mark.parametrize("part", list(PARTS))
def test_each_part_of_the_broker_is_its_own_module_with_its_own_tests(part: str) -> None:
    module, tests, subject = PARTS[part]
    loaded = loaded_by(module)
    assert module in loaded
    assert not loaded & {other for other, *_ in PARTS.values()} - {
        module,
        "triomq.broker.store.store",
        "triomq.broker.store.keys.index",
    }
    assert f"\nfrom {subject}" in (TESTS / tests).read_text()


@pytest.mark.feature("13b")
@pytest.mark.parametrize(
    "module", ["triomq.broker.processors.pull", *(module for module, *_ in PARTS.values())]
)
def test_a_layer_of_the_broker_loads_no_layer_above_it(module: str) -> None:
    number = next(number for number, layer in enumerate(LAYERS) if module.startswith(layer))
    above = LAYERS[1:number] if number else LAYERS[1:]  # processors need the classes of requests
    assert not {name for name in loaded_by(module) if name.startswith(above)}
