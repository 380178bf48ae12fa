"""The ASGI application: routes, error answers, access log.

Knows which handler answers which path; holds no state of its own.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.access import AccessMiddleware, failed
from gateway.authentication import Authentication
from gateway.catalog import Catalog
from gateway.connections import HeadLimits
from gateway.dashboard.feed import LiveFeed
from gateway.dashboard.routes import Dashboard
from gateway.dashboard.running import RunningRequests
from gateway.draining import Drain, DrainMiddleware
from gateway.errors import ApiError
from gateway.evidence.evidence import Evidence
from gateway.evidence.routes import EvidenceRoutes
from gateway.generations import Generations
from gateway.keys import KeyRing
from gateway.linger import LingeringResponse
from gateway.metrics import GatewayMetrics
from gateway.routing import VerifierPool
from gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from gateway.tracing import GatewayTracer


def build_app(
    settings: GatewaySettings,
    pool: VerifierPool,
    stopping: asyncio.Event,
    running: RunningRequests,
    feed: LiveFeed,
    drain: Drain,
    evidence: Evidence,
    tracer: GatewayTracer | None = None,
) -> ASGIApp:
    """The application over a started `pool`, `feed` and `evidence`.

    `stopping` ends running generations when set; `running` is where they are listed. `drain` says
    when new ones are refused; `tracer` tells of them.
    """
    metrics = GatewayMetrics()
    metrics.registry.register(evidence.registry)
    generations = Generations(pool, metrics, settings, stopping, running, tracer)
    catalog = Catalog(pool, metrics, settings, evidence)
    routes = [
        Route("/", catalog.landing, methods=["GET"]),
        Route("/health", catalog.health, methods=["GET"]),
        Route("/ping", catalog.health, methods=["GET", "POST"]),
        Route("/version", catalog.version, methods=["GET"]),
        Route("/load", catalog.load, methods=["GET"]),
        Route("/metrics", catalog.metrics, methods=["GET"]),
        Route("/tokenize", catalog.tokenize, methods=["POST"]),
        Route("/detokenize", catalog.detokenize, methods=["POST"]),
        Route("/v1/models", catalog.models, methods=["GET"]),
        Route("/v1/models/{model:path}", catalog.model, methods=["GET"]),
        Route("/v1/completions", generations.completions, methods=["POST"]),
        Route("/v1/chat/completions", generations.chat_completions, methods=["POST"]),
        *EvidenceRoutes(evidence).routes,
        *Dashboard(feed).routes,
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            ApiError: _api_error,
            Exception: _bug,
        },
    )
    app.router.redirect_slashes = False
    # The dashboard's files hold no data; what they show is asked for with the key.
    guarded = Authentication(
        DrainMiddleware(app, drain), KeyRing(settings.api_keys), open_prefixes=("/dashboard",)
    )
    return AccessMiddleware(
        HeadLimits(guarded, settings.connections),
        metrics,
        frozenset(route.path for route in routes),
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"{request.method} {path}: no such route"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{request.method} is not allowed at {path}; allowed: {allowed}"
    else:
        message = error.detail
    headers = dict(error.headers or {})
    return _respond(ApiError(error.status_code, message, headers=headers))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _respond(error)


async def _bug(request: Request, error: Exception) -> Response:
    # Starlette raises it again behind this answer; the access middleware logs it.
    return failed()


def _respond(error: ApiError) -> JSONResponse:
    kind = LingeringResponse if "Connection" in error.headers else JSONResponse
    return kind(error.body(), status_code=error.status, headers=error.headers)
