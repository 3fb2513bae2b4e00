"""How clients and the proxy find and trust each other: TLS, an address server."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import tls_files
import trio
from grpc_broker import GrpcClient
from proxied_cluster import proxied_cluster

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb

Code = pb.Code


async def test_a_certificate_under_java_s_names_is_shown_to_clients(tmp_path: Path) -> None:
    tls = tls_files.write(tmp_path / "tls")
    settings = {"tlsCertPath": tls.certificate, "tlsKeyPath": tls.key}
    async with proxied_cluster(tmp_path) as cluster, cluster.proxy(**settings) as proxy:
        trusted = grpc.ssl_channel_credentials(Path(tls.ca).read_bytes())  # noqa: ASYNC240
        with grpc.secure_channel(f"127.0.0.1:{proxy.ready.port}", trusted) as channel:
            client = GrpcClient(channel, "with-tls")
            assert (await client.send(client.message(b"one"))).status.code == Code.OK
        plain = proxy.client()
        assert (await plain.send(plain.message(b"two"))).status.code == Code.OK


def _greeted(port: int) -> tuple[str | None, bytes]:
    """Make a TLS connection as official clients do, without trust; return its protocol and the
    first bytes of the server.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as sock,
        context.wrap_socket(sock, server_hostname="proxy") as stream,
    ):
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        return stream.selected_alpn_protocol(), stream.recv(9)


async def test_without_a_certificate_it_makes_one_or_has_no_tls(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster:
        async with cluster.proxy() as proxy:
            protocol, first = await trio.to_thread.run_sync(_greeted, proxy.ready.port)
            assert protocol == "h2"
            assert first[3] == 4  # a SETTINGS frame
        async with cluster.proxy(tlsTestModeEnable="false") as proxy:
            with pytest.raises(OSError):
                await trio.to_thread.run_sync(_greeted, proxy.ready.port)
            plain = proxy.client()
            assert (await plain.send(plain.message(b"two"))).status.code == Code.OK


@contextmanager
def address_server(namesrv: str) -> Iterator[str]:
    """Run a web server that lists name servers; yield its host and port."""
    paths = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{namesrv}\n".encode())

        def log_message(self, *words: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
    assert paths == ["/rocketmq/other"]


async def test_an_address_server_lists_the_name_servers(tmp_path: Path) -> None:
    async with proxied_cluster(tmp_path) as cluster:
        with address_server(cluster.namesrv) as domain:
            settings = {"namesrvDomain": domain, "namesrvDomainSubgroup": "other"}
            async with cluster.proxy(namesrvAddr="", **settings) as proxy:
                client = proxy.client()
                assert (await client.send(client.message(b"one"))).status.code == Code.OK
