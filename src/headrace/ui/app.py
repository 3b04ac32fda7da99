"""The application: it looks for the token, answers with the pages, and sets the headers of all answers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import ConfigError, HeadraceError
from headrace.ui import run_pages, store_pages
from headrace.ui.places import NotNamedError, Places
from headrace.ui.rendering import environment as page_environment
from headrace.ui.requests import Query

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The headers of every answer: nothing from elsewhere is loaded, nothing runs that is not a file of this package, and
the token goes nowhere."""

NOTHING: Final = {"tab": "", "copy": "", "pager": None, "media_of": None}
"""What a page without these has."""

Page = Callable[[Query], tuple[str, dict[str, Any]]]

PAGES: Final[dict[str, Page]] = {
    "": store_pages.home,
    "store": store_pages.store,
    "documents": store_pages.listed,
    "search": store_pages.search,
    "samples": store_pages.listed,
    "mix": run_pages.mix,
    "run": run_pages.run,
    "step": run_pages.step,
    "fed": run_pages.fed,
    "live": run_pages.live,
    "diff": run_pages.diff,
}
"""Path -> the function that returns the template of the page, and its values."""


def application(places: Places, *, token: str) -> ASGIApp:
    """Return the application.

    The token stands in the path, and all links are relative: what is in front of the token, such as the prefix of a
    proxy, does not matter.

    Args:
        places: what may be looked at.
        token: what a URL must have to be answered.
    """
    environment = page_environment()

    def answer(page: Page) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            name, values = page(Query.of(request.scope["query_string"], places))
            return HTMLResponse(environment.get_template(name).render({**NOTHING, **values}))

        return endpoint

    def refused(message: str, kind: str, status: int) -> Response:
        values = {"crumbs": [("not shown", "")], "message": message, "kind": kind}
        return HTMLResponse(environment.get_template("error.html").render(values), status)

    async def failed(request: Request, error: Exception) -> Response:
        status = 404 if isinstance(error, NotNamedError) else 400 if isinstance(error, ConfigError) else 422
        return refused(str(error), type(error).__name__, status)

    async def unknown(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        words = {404: "there is no such page", 405: "these pages are only read: GET is allowed"}
        return refused(words.get(status, "the request cannot be answered"), str(status), status)

    async def broken(request: Request, error: Exception) -> Response:
        message = f"this is a defect of headrace ui: {type(error).__name__}: {error}. Please report it"
        return refused(message, "500", 500)

    routes = [
        *(Route(f"/{name}", answer(page)) for name, page in PAGES.items()),
        Mount("/static", StaticFiles(packages=[("headrace.ui", "static")])),
    ]
    handlers: dict[Any, Any] = {HeadraceError: failed, HTTPException: unknown, Exception: broken}
    return _Guarded(Starlette(routes=routes, exception_handlers=handlers), token)


class _Guarded:
    """Answers requests whose path has the token, and adds the headers to all answers."""

    def __init__(self, inner: ASGIApp, token: str) -> None:
        self._inner = inner
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        parts = str(scope["path"]).split("/")
        # All parts are compared, so that the time tells nothing.
        found = [at for at, part in enumerate(parts[:32]) if secrets.compare_digest(part.encode(), self._token)]
        if not found:
            refused = PlainTextResponse(
                "The URL has no valid token. Open the one that headrace ui printed, as it is.\n", status_code=403
            )
            await refused(scope, receive, with_headers)
            return
        at = found[0]
        if at == len(parts) - 1:
            await RedirectResponse(f"{parts[at]}/", status_code=307)(scope, receive, with_headers)
            return
        inner = {**scope, "path": "/" + "/".join(parts[at + 1 :]), "root_path": ""}
        inner["raw_path"] = inner["path"].encode("utf-8", "surrogateescape")
        await self._inner(inner, receive, with_headers)
