"""A web service that sends messages: a producer that lives as long as the application.

FastAPI takes the same ``lifespan``: ``app = FastAPI(lifespan=lifespan)``.

mqlocal &
NAMESRV_ADDR=127.0.0.1:9876 uvicorn --app-dir examples web_service:app
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from triomq.aio import Producer, PushConsumer, ReceivedMessage, SendError

handled: list[bytes] = []


async def handle(message: ReceivedMessage) -> None:
    """Handle a message in the loop of the web server."""
    handled.append(message.body)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    """Start producer and consumer with the application, and stop them with it."""
    async with (
        Producer(group="web") as producer,  # the address comes from NAMESRV_ADDR
        PushConsumer(group="mailer", subscriptions="Visits", consume_from="first", handler=handle),
    ):
        yield {"producer": producer}


async def visit(request: Request) -> JSONResponse:
    """Store a visit; answer when a broker has it."""
    producer: Producer = request.state.producer
    try:
        receipt = await producer.send("Visits", await request.body())
    except SendError as error:
        return JSONResponse({"error": str(error)}, status_code=503)
    return JSONResponse({"id": receipt.message_id, "handled": len(handled)})


app = Starlette(routes=[Route("/visits", visit, methods=["POST"])], lifespan=lifespan)
