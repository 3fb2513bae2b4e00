"""The manifests of deploy/ at a real API server of Kubernetes: nothing is refused or warned about.

``make kubernetes-test`` builds the server and runs this. There is no kubelet, so no pod starts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from api_server import ApiServer, api_server, missing
from deploy_files import rendered
from mqadmin_calls import mqadmin

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

PODS = "/api/v1/namespaces/triomq/pods"
ACCOUNTS = "/api/v1/namespaces/triomq/serviceaccounts"
OVERLAYS = ("kubernetes", "kubernetes-console", "kubernetes-failover", "kubernetes-secure")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if why := missing():
        pytest.skip(why)
    with api_server(tmp_path_factory.mktemp("api-server")) as running:
        yield running


def test_every_overlay_and_its_pods_are_accepted(server: ApiServer, tmp_path: Path) -> None:
    """One after the other, as a cluster is moved from one to the next: nothing of it is fixed."""
    secrets = tmp_path / "security"
    done = trio.run(mqadmin, "security", "init", "--dir", secrets, "--hosts", "localhost")
    assert done.code == 0, done
    pods: set[str] = set()
    for overlay in OVERLAYS:
        folder = tmp_path / "manifests"
        documents_at = folder / overlay
        if overlay == "kubernetes-secure":
            shutil.copytree(secrets, documents_at / "files")
        documents = rendered(overlay, folder)
        printed = server.apply(documents_at)
        for document in documents:
            name = document["metadata"]["name"]
            assert f"/{name} serverside-applied" in printed
            if document["kind"] not in ("StatefulSet", "Deployment"):
                continue
            if not pods:  # a controller would make it
                account = {"metadata": {"name": "default"}}
                server.create(ACCOUNTS, account)
            template = document["spec"]["template"]
            pod = {"metadata": {**template["metadata"], "name": f"{overlay}-{name}"}}
            volumes = [
                {
                    "name": claim["metadata"]["name"],
                    "persistentVolumeClaim": {"claimName": f"data-{name}-0"},
                }
                for claim in document["spec"].get("volumeClaimTemplates", ())
            ]
            pod["spec"] = {**template["spec"]}
            pod["spec"]["volumes"] = [*template["spec"]["volumes"], *volumes]
            assert server.create(PODS, pod) == ""
            pods.add(name)
    assert pods == {"namesrv", "broker-a", "broker-b", "mqproxy", "console", "admin"}

    as_root = {
        "metadata": {"name": "root"},
        "spec": {"containers": [{"name": "one", "image": "triomq"}]},
    }
    answer = server.client.post(PODS, json=as_root)
    assert answer.status_code == 403
    assert 'violates PodSecurity "restricted' in answer.json()["message"]
