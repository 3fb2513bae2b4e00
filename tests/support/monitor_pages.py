"""The monitor port of a server, asked by a client that we did not write."""

from __future__ import annotations

import http.client

import trio
from prometheus_client.parser import text_string_to_metric_families


def fetch(port: int, path: str, method: str = "GET", token: str = "") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read().decode()
    finally:
        connection.close()


async def get(port: int, path: str, method: str = "GET", token: str = "") -> tuple[int, str, str]:
    return await trio.to_thread.run_sync(fetch, port, path, method, token)


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(page: str, name: str, **labels: str) -> float:
    found = [
        number
        for (one, its), number in samples(page).items()
        if one == name and set(labels.items()) <= its
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]
