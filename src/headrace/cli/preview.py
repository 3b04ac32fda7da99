"""``headrace preview``, ``render`` and ``ui``: samples of a store in readable form, how a recipe makes one, and pages.

The first two mark the tokens that are trained, on a terminal or on a page of HTML; the last serves pages of all kinds.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

import headrace
from headrace import inspect
from headrace.cli.command import command, given_names, print_blocks, print_json, write_file
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError, MissingExtraError
from headrace.inspect.figures import size

if TYPE_CHECKING:
    from headrace.inspect.answers import Shown
    from headrace.inspect.terminal import Draw


@command("preview", "Show samples of a store, and what is trained.", urls=("path", "tokenizer"))
def preview(
    path: Annotated[str, "PATH"],
    *,
    images: Literal["blocks", "none"] | None = None,
    html: Annotated[str | None, "FILE"] = None,
    as_json: bool = False,
    **given: Annotated[Any, inspect.PreviewOptions],
) -> None:
    """Show documents of the store at PATH as text, and which of their tokens are trained.

    By default the tokeniser is the one that the store was made with. Roles are shown if special tokens mark them.
    Conversations, preference pairs, groups and prompts are recognised by their keys.

    For tar shards, Energon datasets and other samples with named parts, the command shows text, pictures, video and
    sound. For a metadataset (.yaml) it shows the samples of one split, by default train, in the order of the mix, each
    with its source.

    Args:
        images: draw pictures as half blocks, or not at all; by default as half blocks on a terminal with colours.
    """
    check_page_name(html)
    kind, to_terminal = inspect.kind_of(path), html is None and not as_json
    inspect.check_fit(path, kind, {**given, **({} if images is None else {"images": images})}, inspect.PREVIEW_FITS)
    if "packing" in given and "over_long" not in given_names() and not given["packing"].cuts:
        # As in `headrace info --pack`: strategies that do not split long documents truncate them.
        from msgspec.structs import replace

        given["packing"] = replace(given["packing"], over_long="truncate_right")
    draw = inspect.drawer(images, sys.stdout, os.environ) if to_terminal and kind != "tokens" else None
    pictures = html is not None or draw is not None
    with inspect.open_preview(path, **given, pictures=pictures, with_figures=not to_terminal) as found:
        show(found, html, as_json=as_json, draw=draw)


def check_page_name(html: str | None) -> None:
    """Raise ConfigError unless the name of a page ends in .html or .htm, so that no data is replaced by mistake."""
    if html is not None and not html.lower().endswith((".html", ".htm")):
        raise ConfigError(f"--html {html}: the name of the page must end in .html")


def show(found: Shown, html: str | None, *, as_json: bool, draw: Draw | None = None) -> None:
    """Write a page if it has a name, and print that and its size, or print JSON; without both, print what is shown.

    Raises:
        OutputError: the page cannot be written.
    """
    if html is not None:
        from headrace.ui import page_of

        data = page_of(found).encode()
        write_file(html, data)
        if not as_json:
            click.echo(f"{html}: {size(len(data))}")
    if as_json:
        print_json(found)
    elif html is None:
        print_blocks(found.shown(), draw)


@command("render", "Show what a recipe makes of one record, and why.", urls=("recipe", "input_path", "tokenizer"))
def render(
    recipe: Annotated[str, "RECIPE"],
    *,
    html: Annotated[str | None, "FILE"] = None,
    as_json: bool = False,
    record: int,
    **given: Annotated[Any, inspect.render],
) -> None:
    """Show one record of the inputs of RECIPE, step by step.

    Shows its layout, its messages, the text that the template makes of them, the tokens, which of them are trained and
    why, and what is cut off. If the record is dropped or refused, the reason is shown. Nothing is written.

    Args:
        record: number of the record, counted from 0 over all inputs.
    """
    check_page_name(html)
    with ProgressBar(quiet=as_json) as bar:
        rendering = inspect.render(recipe, record, **given, on_progress=bar.update)
    show(rendering, html, as_json=as_json)


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
