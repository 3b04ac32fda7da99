"""``headrace ui``: pages in a browser that show data, mixes and runs. They compute nothing: `inspect` and `tracing` do.

    a request -- app: token, headers --> pages: one function a page -- inspect, tracing --> structs
    structs ---- drawing: SVG, templates/*.html ------------------------------------------> the page
    searches, checks, files that grow -- events: server-sent events ----------------------> static/*.js
    previews and renderings ------------- files: page_of --------------------------------> one file, without a server

`places` knows the paths that were named, and refuses all others. `requests` says how to get the same from Python and
from the command line. Everything that a page needs is in the package: nothing is fetched from elsewhere. No page has
markup that comes from data, and nothing is written.

May import: inspect, tracing, io, config, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.ui.app import application
    from headrace.ui.files import page_of
    from headrace.ui.places import Places
    from headrace.ui.serving import serve

_HOMES = {
    "Places": "headrace.ui.places",
    "application": "headrace.ui.app",
    "page_of": "headrace.ui.files",
    "serve": "headrace.ui.serving",
}

__all__ = ["Places", "application", "page_of", "serve"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
