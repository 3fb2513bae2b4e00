"""Who may see and do what: logins, roles, CSRF, read-only, headers, the audit file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
from console_pages import ORIGIN, PASSWORD, PageClient, console_of, other_browser

from triomq.client.console.core.sessions import FAILED_LOGINS_MAX, IDLE_SECONDS
from triomq.client.console.core.users import UserRole
from triomq.client.console.pages import PAGES
from triomq.testing import InProcessCluster


@pytest.fixture
async def client(triomq_cluster: InProcessCluster, tmp_path: Path) -> AsyncIterator[PageClient]:
    async with console_of(triomq_cluster.namesrv_address, tmp_path) as client:
        yield client


async def test_nothing_is_shown_without_a_login(client: PageClient) -> None:
    for page in PAGES:
        if page.role is None:
            continue
        if page.method == "GET":
            await client.get(page.path)
            assert client.status == 303, page
            assert client.headers["location"].startswith("/login?next=%2F"), page
        else:
            await client.get("/login")
            await client.post(page.path, name="x")
            assert client.status == 401, page
    await client.get("/topics", **{"X-Refresh": "1"})
    assert client.status == 401


async def test_login_and_logout(client: PageClient) -> None:
    await client.get("/login?next=/topics%3Fpage%3D2")
    await client.post("/login", name="viewer", password="wrong password", next="/")
    assert client.status == 401
    assert "User or password is wrong." in client.text
    await client.post("/login", name="nobody", password=PASSWORD, next="/")
    assert client.status == 401
    await client.get("/login?next=/topics%3Fpage%3D2")
    assert '<input type="hidden" name="next" value="/topics?page=2">' in client.text
    await client.post("/login", name="viewer", password=PASSWORD, next="/topics?page=2")
    assert (client.status, client.headers["location"]) == (303, "/topics?page=2")
    cookie = client.headers["set-cookie"]
    assert cookie.startswith("console_session=")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert PASSWORD not in client.console.settings.audit_file.read_text()  # type: ignore[union-attr]
    assert [(line["user"], line["outcome"]) for line in client.audit()] == [
        ("viewer", "failed"),
        ("nobody", "failed"),
        ("viewer", "done"),
    ]
    assert client.audit()[0]["address"] == "192.0.2.7"
    session = client.http.cookies["console_session"]
    await client.get("/")
    await client.post("/logout")
    assert client.status == 303
    client.http.cookies.set("console_session", session)
    await client.get("/")
    assert client.status == 303, "the cookie of an ended session"


async def test_failed_logins_are_limited(client: PageClient) -> None:
    for _ in range(FAILED_LOGINS_MAX):
        assert await client.log_in("admin", "wrong password") == 401
    assert await client.log_in("admin") == 429
    assert "Too many failed logins" in client.text
    async with other_browser(client) as other:
        assert await other.log_in("admin") == 429, "the same user from another address"
        assert await other.log_in("viewer") == 303
    assert await client.log_in("viewer") == 429, "another user at the same address"


async def test_sessions_end(client: PageClient) -> None:
    await client.log_in("viewer")
    await client.get("/")
    assert client.status == 200
    session = next(iter(client.console.sessions._sessions.values()))
    session.used_at -= IDLE_SECONDS - 1
    await client.get("/", **{"X-Refresh": "1"})
    assert client.status == 200
    session.used_at -= 2
    await client.get("/")
    assert client.status == 303


async def test_forms_of_other_sites_are_refused(client: PageClient) -> None:
    await client.get("/login")
    await client.post("/login", {"Origin": "https://evil.example"}, name="admin", password=PASSWORD)
    assert client.status == 403
    await client.log_in("admin")
    await client.follow()
    token_page = client.text
    form = {"name": "forged", "cluster": "DefaultCluster", "queues": "1", "type": "NORMAL"}
    for headers, changes in (
        ({}, {"token": ""}),
        ({}, {"token": "0" * 64}),
        ({}, {"token": client.console.sessions.form_token("another cookie")}),
        ({"Origin": "https://evil.example"}, {}),
        ({"Origin": "null"}, {}),
        ({"Sec-Fetch-Site": "cross-site"}, {}),
        ({"Sec-Fetch-Site": "same-site"}, {}),
    ):
        client.text = token_page
        await client.post("/topics/create", headers, **form, **changes)
        assert client.status == 403, (headers, changes)
    answer = await client.http.post("/topics/create", json=form, headers={"Origin": ORIGIN})
    assert answer.status_code == 400
    answer = await client.http.get("/topics/create", params=form)
    assert answer.status_code == 200
    assert [line["action"] for line in client.audit()] == ["login"], "nothing was tried"
    client.text = token_page
    await client.post("/topics/create", **form)
    assert client.status == 303, "the same form with its token"


async def test_roles(client: PageClient) -> None:
    await client.log_in("viewer")
    await client.get("/")
    home = client.text
    changes = [page for page in PAGES if page.change]
    assert len(changes) >= 8
    for page in changes:
        client.text = home
        await client.post(page.path, name="x")
        assert client.status == 403, page
        assert "needs the role" in client.text
        assert page.role is not None
        assert page.role >= UserRole.OPERATOR
    for path in ("/policies", "/topics/create"):
        await client.get(path)
        assert client.status == 403, path
    await client.get("/topics")
    assert "/topics/create" not in client.text
    async with other_browser(client) as other:
        await other.log_in("operator")
        await other.get("/topics")
        assert "/topics/create" in other.text
        for path in ("/topic/delete", "/group/delete", "/configuration/change"):
            await other.post(path, name="x", confirm="x")
            assert other.status == 403, path


async def test_read_only(triomq_cluster: InProcessCluster, tmp_path: Path) -> None:
    async with console_of(triomq_cluster.namesrv_address, tmp_path, allow_changes=False) as client:
        await client.log_in("admin")
        await client.get("/topics")
        assert "read-only" in client.text
        assert "/topics/create" not in client.text
        home = client.text
        for page in PAGES:
            if page.change:
                client.text = home
                await client.post(page.path, name="x", confirm="x")
                assert client.status == 403, page
                assert "--allow-changes" in client.text, page
        assert {line["action"] for line in client.audit()} == {"login"}


async def test_headers_of_every_answer(client: PageClient) -> None:
    await client.log_in("admin")
    for path in ("/", "/login", "/topics", "/broker", "/static/console.js", "/nowhere", "/logout"):
        await client.get(path)
        policy = client.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.headers["x-content-type-options"] == "nosniff"
        assert client.headers["x-frame-options"] == "DENY"
    await client.get("/topics")
    assert client.headers["cache-control"] == "no-store"


async def test_cookies_are_secure_behind_https(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    async with console_of(triomq_cluster.namesrv_address, tmp_path, secure_cookies=True) as client:
        await client.get("/login")
        assert "Secure" in client.headers["set-cookie"]
        assert "strict-transport-security" in client.headers


async def test_a_change_without_audit_does_not_happen(client: PageClient, tmp_path: Path) -> None:
    await client.log_in("admin")
    await client.get("/topics/create")
    client.console.audit = attrs.evolve(client.console.audit, path=tmp_path / "no" / "audit")
    form = {"name": "unaudited", "cluster": "DefaultCluster", "queues": "1", "type": "NORMAL"}
    await client.post("/topics/create", **form)
    assert client.status == 500
    assert "unaudited" not in await client.console.admin.topics()


async def test_hostile_forms(client: PageClient) -> None:
    await client.log_in("admin")
    await client.get("/topics/create")
    page = client.text
    await client.post("/topics/create", name="x" * (1 << 20))
    assert client.status == 400
    assert "longer than" in client.text
    client.text = page
    await client.post("/topics/create", **{f"f{number}": "1" for number in range(600)})
    assert client.status == 400
    for name in ("<script>alert(1)</script>", "a b", "TBW102", "x" * 500):
        client.text = page
        await client.post(
            "/topics/create", name=name, cluster="DefaultCluster", queues="1", type="NORMAL"
        )
        assert client.status in (400, 502), name
    raw = await client.get(
        "/topics?search=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&page=9999999999999"
    )
    assert client.status == 200
    assert "<script>alert" not in raw
    for path in ("/topic?name=%00%1b", "/message?topic=x&broker=y&queue=-1&offset=0", "/broker"):
        await client.get(path)
        assert client.status in (400, 502), path


async def test_logins_of_the_cluster_need_brokers_that_check_passwords(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    """Otherwise any password would do."""
    async with console_of(triomq_cluster.namesrv_address, tmp_path, users_file=None) as client:
        assert await client.log_in("admin", "anything") == 502
        assert "does not check passwords" in client.text
        await client.get("/")
        assert client.status == 303
