"""``headrace ui``: pages in the browser that show stores, mixes and runs."""

from __future__ import annotations

from typing import Annotated

import click

import headrace
from headrace.cli.command import command, print_json
from headrace.errors import MissingExtraError


@command("ui", "Show data, mixes and runs in the browser.")
def ui(
    paths: Annotated[tuple[str, ...], "PATH..."] = (),
    *,
    port: int | None = None,
    as_json: bool = False,
) -> None:
    """Show stores, metadatasets, runs and metrics at each PATH, or in the folders below it, as pages in a browser.

    Without a PATH the present folder is shown. A PATH with {rank} in it, as metrics-{rank}.jsonl, is the metrics of a
    training, which are shown as they come. The pages are served on this machine only, at a URL with a random token;
    from elsewhere, use ssh -L. They write nothing, and show nothing outside of the paths. Ctrl-C ends it. With
    --json the command prints what the first page shows, and serves nothing.

    Args:
        port: port; by default 8421, or any that is free.
    """
    if port is not None and not 0 <= port <= 65_535:
        raise click.UsageError(f"--port {port}: a port is 0 to 65535")
    places = headrace.ui.Places(paths or (".",))
    if as_json:
        print_json(places.overview())
        return
    try:
        serve = headrace.ui.serve
    except ImportError as error:
        raise MissingExtraError(f"headrace ui needs {error.name}: pip install 'headrace[ui]'") from error
    try:
        serve(places, port=port, on_ready=lambda url: click.echo(url))
    except KeyboardInterrupt:
        click.echo("ended", err=True)
