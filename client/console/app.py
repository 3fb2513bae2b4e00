"""The ASGI application: all addresses of the console, and the files of its pages."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from triomq.client.console.core.guard import HEADERS, guarded
from triomq.client.console.core.page_visit import Console
from triomq.client.console.pages import PAGES

KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = Path(__file__).with_name("static")


def make_app(console: Console) -> Starlette:
    """Return the application that serves a console."""
    routes = [
        Route(
            page.path,
            guarded(console, page),
            methods=[page.method],
            name=f"{page.method} {page.path}",
        )
        for page in PAGES
    ]
    return Starlette(
        routes=[*_files(), Route("/livez", _alive), *routes],
        exception_handlers={404: _no_page, 405: _no_page},
    )


async def _no_page(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return PlainTextResponse("there is no such page\n", status, headers=HEADERS)


async def _alive(request: Request) -> Response:
    return PlainTextResponse("ok\n")


def _files() -> list[Route]:
    """Return the files of pages, read once."""
    return [_file(path) for path in sorted(FILES.iterdir()) if path.suffix in KINDS]


def _file(path: Path) -> Route:
    body, kind = path.read_bytes(), KINDS[path.suffix]

    async def send(request: Request) -> Response:
        headers = {**HEADERS, "Cache-Control": "max-age=3600"}
        return Response(body, headers=headers, media_type=kind)

    return Route(f"/static/{path.name}", send)
