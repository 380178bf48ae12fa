"""Handlers of `/dashboard` and of the live feed.

Knows HTTP; the files are files.py's and the snapshots feed.py's. The files hold no data and need no
key; all that the page shows it asks of routes that do.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway import sse
from gateway.dashboard.feed import LiveFeed
from gateway.dashboard.files import HEADERS, INDEX, read_files
from gateway.errors import ApiError


class Dashboard:
    """The page over a started `feed`."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed
        self._files = read_files()

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/dashboard", self.page, methods=["GET"]),
            Route("/dashboard/", self.without_slash, methods=["GET"]),
            Route("/dashboard/{file}", self.file, methods=["GET"]),
            Route("/v1/live", self.live, methods=["GET"]),
        ]

    async def page(self, request: Request) -> Response:
        return self._answer(request, INDEX)

    async def without_slash(self, request: Request) -> Response:
        # The page's own links are relative to a path without it.
        return RedirectResponse("../dashboard", status_code=308)

    async def file(self, request: Request) -> Response:
        return self._answer(request, request.path_params["file"])

    async def live(self, request: Request) -> Response:
        return StreamingResponse(self._feed.listen(), headers=sse.HEADERS)

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise ApiError(404, f"{request.url.path}: the dashboard has no such file")
        headers = {**HEADERS, "ETag": file.etag}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)
