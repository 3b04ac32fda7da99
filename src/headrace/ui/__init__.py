"""``headrace ui``: pages in a browser that show data, mixes and runs. They compute nothing: `inspect` and `tracing` do.

    a request -- app: token, headers --> pages: one function a page -- inspect, tracing --> structs
    structs ---- drawing: SVG, templates/*.html ------------------------------------------> the page
    previews and renderings -- rendering: page_of ---------------------------------------> one file, without a server

`places` knows the paths that were named, and refuses all others. `requests` reads what a URL asks for, and names the
command that shows the same. Everything that a page needs is in the package: nothing is fetched from elsewhere. No page
has markup that comes from data, and nothing is written.

May import: inspect, tracing, io, config, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
