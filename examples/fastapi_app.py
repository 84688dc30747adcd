"""FastAPI answers through the QA server: `uvicorn fastapi_app:app`, in this folder.

`curl localhost:8000/ask --json '{"question": "Who did?", "text": "Ada did."}'` asks it.
A question whose client hangs up is cancelled, and so is one that takes longer than TIMEOUT_S.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from qa_service.aio import AsyncQaClient
from qa_service.client import QaClientError

TIMEOUT_S = 10.0


class Question(BaseModel):
    """What is asked."""

    question: str
    text: str


class Found(BaseModel):
    """The answer: `text[start:end]`, in code points; null and empty if the text has none."""

    answer: str
    score: float
    start: int | None
    end: int | None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Gives all requests of the application one client."""
    hosts = os.environ.get("QA_HOST", "localhost:9999")
    async with AsyncQaClient(hosts, token=os.environ.get("QA_TOKEN")) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(question: Question, request: Request) -> Found:
    """Answers one question; 503 says that the same one may succeed later."""
    asking = asyncio.create_task(
        app.state.client.ask(question.question, question.text, timeout_ms=TIMEOUT_S * 1e3)
    )
    hanging_up = asyncio.create_task(_hung_up(request))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait([asking, hanging_up], return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise HTTPException(499, "the client has disconnected")
        answer = asking.result()
    except TimeoutError:
        raise HTTPException(504, f"no answer within {TIMEOUT_S:g} s") from None
    except QaClientError as error:
        raise HTTPException(503 if error.retryable else 422, str(error)) from error
    finally:
        asking.cancel()
        hanging_up.cancel()
    return Found(answer=answer.answer, score=answer.score, start=answer.start, end=answer.end)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
