"""An API server of Kubernetes, built from its Go modules: it refuses what a cluster refuses.

``python tests/support/api_server.py`` builds it into ``.peers/kubernetes``: half an hour and 2 GB
of Go's cache, once. It keeps its objects in an etcd, which Debian has (``etcd-server``).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from processes import free_port

VERSION = "1.34.4"
"""Of Kubernetes; the modules that live in its repository have this version with a 0."""
HOME = Path(__file__).resolve().parents[2] / ".peers" / "kubernetes"
PROGRAM = HOME / f"kube-apiserver-{VERSION}"
TOKEN = "of-a-test"


def build() -> None:
    """Build the program unless it is there."""
    if PROGRAM.exists():
        return
    HOME.mkdir(parents=True, exist_ok=True)
    module = "k8s.io/kubernetes"
    told = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@v{VERSION}"],
        stdout=subprocess.PIPE,
        check=True,
    )
    parts = re.findall(
        r"^\t(\S+) => \./staging", Path(json.loads(told.stdout)["GoMod"]).read_text(), re.MULTILINE
    )
    replaced = "".join(
        f"replace {part} => {part} v0.{VERSION.partition('.')[2]}\n" for part in parts
    )
    (HOME / "go.mod").write_text(
        f"module triomq.test/kubernetes\n\ngo 1.24.0\n\ntool {module}/cmd/kube-apiserver\n\n"
        f"require {module} v{VERSION}\n\n{replaced}"
    )
    subprocess.run(["go", "mod", "tidy"], cwd=HOME, check=True)
    command = ["go", "build", "-ldflags=-s -w", "-o", PROGRAM, f"{module}/cmd/kube-apiserver"]
    subprocess.run(command, cwd=HOME, check=True)


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """Run an API server with all its default admission plugins; its files are in ``folder``."""
    etcd, peer, port = free_port(), free_port(), free_port()
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], capture_output=True, check=True)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    store = f"http://127.0.0.1:{etcd}"
    commands: list[list[str | Path]] = [
        [
            *("etcd", "--data-dir", folder / "etcd", "--listen-client-urls", store),
            *("--advertise-client-urls", store, "--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        ],
        [
            *(PROGRAM, f"--etcd-servers={store}", f"--secure-port={port}"),
            *("--bind-address=127.0.0.1", f"--cert-dir={folder / 'certificates'}"),
            *("--service-account-issuer=https://kubernetes.default", "--authorization-mode=RBAC"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-cluster-ip-range=10.96.0.0/16",
        ],
    ]
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((folder / f"{Path(command[0]).name}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        server = ApiServer(f"https://127.0.0.1:{port}")
        stack.callback(server.client.close)
        server.wait_ready(120)
        yield server


class ApiServer:
    """A running API server."""

    def __init__(self, url: str) -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=url, headers=headers, verify=False, timeout=60)

    def wait_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/readyz").status_code == 200:
                    return
            assert time.monotonic() < deadline, f"no API server at {self.url}: see its log"
            time.sleep(0.5)

    def create(self, path: str, document: dict[str, Any]) -> str:
        """Create an object; return the server's warnings. It must not refuse."""
        answer = self.client.post(path, json=document)
        assert answer.status_code == 201, answer.text
        return str(answer.headers.get("warning", ""))

    def apply(self, overlay: Path) -> str:
        """What ``kubectl apply`` of a folder prints, on the server's side, with strict validation;
        a warning is an error.
        """
        kubectl = ["kubectl", "--server", self.url, "--token", TOKEN, "--insecure-skip-tls-verify"]
        options = ["--server-side", "--force-conflicts", "--validate=strict", "-k", str(overlay)]
        done = subprocess.run(
            [*kubectl, "apply", "--warnings-as-errors", *options],
            env={**os.environ, "HOME": str(overlay)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout


def missing() -> str:
    """What a test that needs the server lacks here, or nothing."""
    if not PROGRAM.exists():
        return "make kubernetes-test builds the API server"
    lacks = [name for name in ("etcd", "kubectl", "openssl") if shutil.which(name) is None]
    return (
        f"{', '.join(lacks)} missing: apt-get install etcd-server kubectl openssl" if lacks else ""
    )


if __name__ == "__main__":
    build()
