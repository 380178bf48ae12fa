"""Small endpoints: which models there are, health, versions, load, text to ids and back.

Knows their JSON shapes (OpenAI's, and vLLM's where OpenAI has none).
"""

from __future__ import annotations

import time
from typing import Any

from speculation.v1 import verifier_pb2 as pb
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from gateway.access import record_of
from gateway.bodies import DetokenizeBody
from gateway.body import read_json_object
from gateway.calls import tokenize_request
from gateway.errors import ApiError, bad_request, unavailable
from gateway.evidence.evidence import Evidence
from gateway.evidence.routes import store_json
from gateway.landing import landing_page
from gateway.metrics import GatewayMetrics
from gateway.requests import parse, parse_tokenize
from gateway.routing import VerifierPool
from gateway.settings import GatewaySettings
from outrider import __version__


class Catalog:
    """Handlers of every endpoint that generates nothing."""

    def __init__(
        self,
        pool: VerifierPool,
        metrics: GatewayMetrics,
        settings: GatewaySettings,
        evidence: Evidence,
    ) -> None:
        self._evidence = evidence
        self._pool = pool
        self._metrics = metrics
        self._settings = settings
        self._created = int(time.time())

    async def landing(self, request: Request) -> HTMLResponse:
        serving = [info.model for info in await self._pool.serving()]
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(
            landing_page(str(request.base_url).rstrip("/"), serving, __version__), headers=headers
        )

    async def models(self, request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": await self._models()})

    async def model(self, request: Request) -> JSONResponse:
        wanted = request.path_params["model"]
        for entry in await self._models():
            if entry["id"] == wanted:
                return JSONResponse(entry)
        raise ApiError(404, f"model: {wanted!r} is not served here", param="model")

    async def health(self, request: Request) -> JSONResponse:
        serving = bool(await self._pool.serving())
        if self._settings.api_keys and not record_of(request.scope).key:
            # Strangers are told no more than load balancers need.
            if not serving:
                raise unavailable("no verifier serves")
            return JSONResponse({"status": "ok"})
        if not serving:
            raise self._pool.nobody_serves()
        return JSONResponse(
            {
                "status": "ok",
                "verifiers": [
                    {"address": v.address, "serves": not v.problem, "problem": v.problem or None}
                    for v in self._pool.verifiers
                ],
                "evidence": store_json(self._evidence),
            }
        )

    async def version(self, request: Request) -> JSONResponse:
        return JSONResponse({"version": __version__})

    async def load(self, request: Request) -> JSONResponse:
        return JSONResponse({"server_load": self._metrics.server_load})

    async def metrics(self, request: Request) -> Response:
        answered = await self._pool.refresh()
        text = self._metrics.exposition(self._pool.verifiers, answered)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def tokenize(self, request: Request) -> JSONResponse:
        body = parse_tokenize(await self._body(request))
        model = await self._pool.resolve(body.model)
        answer = await self._pool.tokenize(
            model, tokenize_request(body), self._settings.request_timeout_s
        )
        strings = list(answer.token_strings) if body.return_token_strs else None
        return JSONResponse(
            {
                "count": len(answer.token_ids),
                "max_model_len": answer.max_model_len,
                "tokens": list(answer.token_ids),
                "token_strs": strings,
            }
        )

    async def detokenize(self, request: Request) -> JSONResponse:
        body = parse(DetokenizeBody, await self._body(request))
        model = await self._pool.resolve(body.model)
        # Every id that was asked about is shown, as vLLM does.
        asked = pb.DetokenizeRequest(
            token_ids=body.tokens,
            skip_special_tokens=False,
            return_token_texts=bool(body.return_token_texts),
        )
        try:
            answer = await self._pool.detokenize(model, asked, self._settings.request_timeout_s)
        except ApiError as error:
            if error.param != "token_ids":
                raise
            raise bad_request(error.message.replace("token_ids", "tokens", 1), "tokens") from None
        texts = {"token_texts": list(answer.token_texts)} if body.return_token_texts else {}
        return JSONResponse({"prompt": answer.text, **texts})

    async def _body(self, request: Request) -> dict[str, Any]:
        return await read_json_object(
            request, self._settings.max_body_bytes, self._settings.body_timeout_s
        )

    async def _models(self) -> list[dict[str, Any]]:
        infos = {info.model: info for info in await self._pool.serving()}
        if not infos:
            raise self._pool.nobody_serves()
        return [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "outrider",
                "root": name,
                "parent": None,
                "max_model_len": info.max_model_len,
                "permission": [],
            }
            for name, info in infos.items()
        ]
