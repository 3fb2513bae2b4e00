"""Clusters for the compatibility tests. A missing peer skips with the command that brings it."""

from __future__ import annotations

from collections.abc import Iterator

import access_run
import processes
import pytest

JAVA_VERSIONS = ("5.5.0", "4.9.4")


def need_java(version: str) -> None:
    if processes.java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``TEST_ACCESS=true``, leave out what cannot run with users and rules."""
    for item in items if access_run.ON else []:
        for part, reason in access_run.LEFT_OUT.items():
            if part in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With ``TEST_ACCESS=true`` all clients sign."""
    with pytest.MonkeyPatch.context() as patch:
        if access_run.ON:
            for name, value in access_run.environment(tmp_path_factory.mktemp("access")).items():
                patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def our_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One name server and two brokers of ours, as processes; yields the name server's address."""
    folder = tmp_path_factory.mktemp("ours")
    with (
        processes.our_name_server(folder) as namesrv,
        processes.our_broker(folder / "a", "broker-a", namesrv),
        processes.our_broker(folder / "b", "broker-b", namesrv),
    ):
        for name in ("broker-a", "broker-b"):
            processes.wait_registered(namesrv, name)
        yield namesrv


@pytest.fixture(scope="module")
def java_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One name server and one broker of Java 5.5.0; yields the name server's address.

    Not for all modules: a broker of Java that has nothing to do takes a fifth of a processor, and
    a start of it eight seconds.
    """
    need_java("5.5.0")
    folder = tmp_path_factory.mktemp("java")
    with (
        processes.java_name_server("5.5.0", folder / "namesrv") as namesrv,
        processes.java_broker("5.5.0", folder / "broker", "broker-java", namesrv),
    ):
        yield namesrv


@pytest.fixture(params=JAVA_VERSIONS)
def java_version(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    need_java(version)
    return version
