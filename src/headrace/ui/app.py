"""The application: it looks for the token, answers with the pages, and sets the headers of all answers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from importlib.resources import files
from threading import Event
from typing import Any, Final

import jinja2
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace import _version
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect import figures, views
from headrace.inspect.lines import turns
from headrace.inspect.questions import check
from headrace.ui import drawing, events, media, run_pages, shell, store_pages
from headrace.ui.places import NotNamedError, Places
from headrace.ui.requests import Query, link

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
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

STATIC: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

Page = Callable[[Query], tuple[str, dict[str, Any]]]

PAGES: Final[dict[str, Page]] = {
    "": store_pages.home,
    "store": store_pages.store,
    "documents": store_pages.documents,
    "find": store_pages.find,
    "search": store_pages.search,
    "samples": store_pages.samples,
    "sample": store_pages.sample,
    "check": store_pages.check,
    "mix": run_pages.mix,
    "run": run_pages.run,
    "step": run_pages.step,
    "fed": run_pages.fed,
    "live": run_pages.live,
    "diff": run_pages.diff,
}
"""Path -> the function that returns the template of the page, and its values."""


def application(places: Places, *, token: str, ending: Event | None = None) -> ASGIApp:
    """Return the application.

    The token stands in the path, and all links are relative: what is in front of the token, such as the prefix of a
    proxy, does not matter.

    Args:
        places: what may be looked at.
        token: what a URL must have to be answered.
        ending: is set when the server ends, and ends streams of events.
    """
    ending = ending or Event()
    environment = _environment()

    def answer(page: Page) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            asked = Query.of(request.scope["query_string"], places)

            def render() -> str:
                template, values = page(asked)
                return environment.get_template(template).render(values)

            return HTMLResponse(await run_in_threadpool(render))

        return endpoint

    async def failed(request: Request, error: Exception) -> Response:
        status = 404 if isinstance(error, NotNamedError) else 400 if isinstance(error, ConfigError) else 422
        text = environment.get_template("error.html").render(message=str(error), kind=type(error).__name__)
        return HTMLResponse(text, status)

    async def unknown(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        words = {404: "there is no such page", 405: "these pages are only read: GET is allowed"}
        message = words.get(status, "the request cannot be answered")
        return HTMLResponse(environment.get_template("error.html").render(message=message, kind=str(status)), status)

    async def broken(request: Request, error: Exception) -> Response:
        message = f"this is a defect of headrace ui: {type(error).__name__}: {error}. Please report it"
        return HTMLResponse(environment.get_template("error.html").render(message=message, kind="500"), 500)

    async def search_events(request: Request) -> Response:
        asked = Query.of(request.scope["query_string"], places)
        path = await run_in_threadpool(asked.path, "tokens", "samples")
        found = views.search(path, asked.text("q"), first=asked.number("first", 0))
        return _stream(events.searching(found, ending))

    async def check_events(request: Request) -> Response:
        path = await run_in_threadpool(Query.of(request.scope["query_string"], places).path, "tokens", "samples")
        return _stream(events.checking(lambda on_progress: check(path, on_progress=on_progress), ending))

    async def live_events(request: Request) -> Response:
        path = await run_in_threadpool(Query.of(request.scope["query_string"], places).path, "metrics")
        return _stream(events.growing(lambda: views.metrics_files(path), ending))

    async def part(request: Request) -> Response:
        asked = Query.of(request.scope["query_string"], places)
        found = await run_in_threadpool(media.part, asked)
        return media.response(found, request.headers.get("range"))

    routes = [Route(f"/{name}", answer(page), methods=["GET"]) for name, page in PAGES.items()]
    routes += [
        Route("/events-search", search_events, methods=["GET"]),
        Route("/events-check", check_events, methods=["GET"]),
        Route("/events-live", live_events, methods=["GET"]),
        Route("/part", part, methods=["GET"]),
        Route("/static/{name}", _static, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {HeadraceError: failed, HTTPException: unknown, Exception: broken}
    return _Guarded(Starlette(routes=routes, exception_handlers=handlers), token)


def _stream(found: Any) -> Response:
    # Proxies that collect an answer would hold events back.
    return StreamingResponse(found, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    kind = STATIC.get(name.rpartition(".")[2])
    file = files("headrace.ui") / "static" / name
    if kind is None or "/" in name or not file.is_file():
        raise HTTPException(404)
    return Response(file.read_bytes(), media_type=kind)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("headrace.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
        auto_reload=False,
    )
    environment.globals.update(link=link, drawing=drawing, shell=shell, version=_version.__version__)
    environment.filters.update(
        count=figures.count,
        size=figures.size,
        plural=figures.plural,
        short=_short,
        percent=_percent,
        json=figures.as_json,
        turns=turns,
        broken=_broken,
        dropped=_dropped,
        source=drawing.source_name,
        utc=_utc,
        sum_values=_sum_values,
    )
    return environment


def _harmless(value: Any) -> Any:
    """Make texts harmless before they are escaped: characters that do not print, or move others, are written out."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(figures.safe_text(line) for line in value.split("\n"))
    return "" if value is None else value


def _short(number: float) -> str:
    return figures.short(number).strip()


def _percent(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{100 * share:.{digits}f} %"


def _utc(date: str) -> str:
    """Return a date of a file, such as ``2026-03-01T12:30:09+00:00``, as pages show dates."""
    return date[:16].replace("T", " ") if date.endswith("+00:00") else date


def _broken(text: str) -> str:
    """Mark line breaks of the data, to tell them from those of the page."""
    return "\n".join(figures.safe_lines(text))


def _dropped(documents: dict[str, int], tokens: dict[str, int]) -> list[str]:
    """Return the reasons of both that have a count."""
    return [reason for reason in dict.fromkeys((*documents, *tokens)) if documents.get(reason) or tokens.get(reason)]


def _sum_values(counts: dict[str, int]) -> int:
    return sum(counts.values())


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
