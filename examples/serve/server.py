# SPDX-License-Identifier: Apache-2.0
"""A server for a model that takes texts, written by tlo.export. It needs no tfx_largeout.

    pip install "tfx_largeout[serve]"        # or: tensorflow fastapi uvicorn prometheus-client
    python examples/serve/server.py models/words
    curl -d '{"texts": ["a large body of salt water"], "k": 3}' localhost:8000/v1/predict

`/` is a page to try it, `/health` shows whether it is ready, `/metrics` is for Prometheus.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
import uvicorn
from batcher import Batcher, Full
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from metrics import Metrics
from model import Model
from question import read_question

PAGE = Path(__file__).with_name("page.html")
BUSY = {"Retry-After": "1"}
log = logging.getLogger("uvicorn.error")


class Service:
    """A model that loads while the port is already open, and its batcher."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.metrics = Metrics()
        self.model: Model | None = None
        self.batcher: Batcher | None = None

    async def start(self) -> None:
        options = self.options
        self.model = model = await asyncio.to_thread(Model, options.folder)
        self.batcher = Batcher(
            lambda texts, option: model(texts, *option),
            options.max_batch,
            options.max_delay_ms / 1e3,
            options.max_waiting,
            self.metrics.batch_size.observe,
        )
        self.metrics.waiting.set_function(self.batcher.waiting)
        self.metrics.ready.set(1)
        log.info("Ready: the %d best of %s", self.model.k, options.folder)

    async def stop(self) -> None:
        if self.batcher is not None:
            await self.batcher.stop()

    async def predict(self, request: Request) -> list[list[dict[str, Any]]]:
        if self.model is None or self.batcher is None:
            raise HTTPException(503, "the model is not loaded yet", BUSY)
        model = self.model
        question = await read_question(
            request, model.k, model.takes_num_probed, model.takes_exclude
        )
        try:
            option = question.num_probed, tuple(question.exclude)
            rows = await self.batcher.answers(question.texts, option)
        except Full as error:
            raise HTTPException(503, "too many texts wait; try again", BUSY) from error
        except tf.errors.InvalidArgumentError as error:
            if "num_probed" in str(error):
                detail = "num_probed: must be at most the number of lists; got "
                raise HTTPException(400, f"{detail}{question.num_probed}") from error
            if "exclude" in str(error):
                detail = "exclude: must be ids of classes; got up to "
                raise HTTPException(400, f"{detail}{max(question.exclude)}") from error
            raise
        return [row[: question.k] for row in rows]


def make_app(service: Service, give_up: Callable[[BaseException], None]) -> FastAPI:
    """Returns the routes; `give_up` is called with the error of a model that can't be loaded."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        def started(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                give_up(error)

        starting = asyncio.create_task(service.start())
        starting.add_done_callback(started)
        yield
        starting.cancel()
        await service.stop()

    # The pages of documentation would load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def measure(
        request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if request.url.path != "/v1/predict":
            return await answer(request)
        begin, code = time.perf_counter(), 500
        try:
            response = await answer(request)
            code = response.status_code
            return response
        finally:
            service.metrics.requests.labels(code).inc()
            service.metrics.latency.observe(time.perf_counter() - begin)

    @app.post("/v1/predict")
    async def predict(request: Request) -> Response:
        return JSONResponse({"predictions": await service.predict(request)})

    @app.get("/health")
    async def health() -> Response:
        ready = service.batcher is not None
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/")
    async def page() -> Response:
        return FileResponse(PAGE)

    return app


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="what tlo.export wrote")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-batch", type=int, default=64, help="texts per call of the model")
    parser.add_argument("--max-delay-ms", type=float, default=2, help="how long a text waits")
    parser.add_argument(
        "--max-waiting", type=int, default=1024, help="texts that may wait; more get a 503"
    )
    return parser.parse_args(arguments)


def main() -> None:
    options = parsed()
    errors = []

    def give_up(error: BaseException) -> None:
        errors.append(error)
        server.should_exit = True

    app = make_app(Service(options), give_up)
    server = uvicorn.Server(
        uvicorn.Config(app, options.host, options.port, access_log=False, log_level="info")
    )
    server.run()
    if errors:
        raise SystemExit(f"{options.folder} can't be served: {errors[0]}")


if __name__ == "__main__":
    main()
