"""``headrace ui``: pages in the browser that show stores, mixes and runs."""

from __future__ import annotations

import click

import headrace
from headrace.cli.command import Command, json_option, print_json
from headrace.errors import MissingExtraError


@click.command(cls=Command, name="ui", short_help="Show data, mixes and runs in the browser.")
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="Port (default: 8421, or any that is free).")
@click.option(
    "--live", metavar="FILE", multiple=True, help="Metrics of a training, as metrics-{rank}.jsonl; may be repeated."
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@json_option
def ui(paths: tuple[str, ...], port: int | None, live: tuple[str, ...], open_browser: bool, as_json: bool) -> None:
    """Show stores, metadatasets, runs and metrics at each PATH, or in the folders below it, as pages in a browser.

    Without a PATH the present folder is shown. The pages are served on this machine only, at a URL with a random token;
    from elsewhere, use ssh -L. They write nothing, and show nothing outside of the paths. Ctrl-C ends it. With
    --json the command prints what the first page shows, and serves nothing.
    """
    places = headrace.ui.Places(paths if paths or live else (".",), live)
    if as_json:
        print_json(places.overview())
        return
    try:
        serve = headrace.ui.serve
    except ImportError as error:
        raise MissingExtraError(f"headrace ui needs {error.name}: pip install 'headrace[ui]'") from error
    try:
        serve(places, port=port, on_ready=lambda url: click.echo(url), open_browser=open_browser)
    except KeyboardInterrupt:
        click.echo("ended", err=True)
