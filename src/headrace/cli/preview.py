"""``headrace preview`` and ``headrace render``: samples of a store in readable form, and how a recipe makes a sample.

Both mark the tokens that are trained, on a terminal or on a page of HTML.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from headrace import inspect
from headrace.cli.command import (
    Command,
    given_options,
    json_option,
    packing_of,
    part_options,
    print_json,
    write_file,
)
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError
from headrace.inspect.figures import size

if TYPE_CHECKING:
    from headrace.plan.packing import Packing


@click.command(
    cls=Command, urls=("path", "tokenizer"), name="preview", short_help="Show samples of a store, and what is trained."
)
@click.argument("path", metavar="PATH")
@click.option(
    "--documents",
    "--samples",
    "samples",
    metavar="N,N-M",
    help="Numbers of the documents, packs or samples to show, as 0,5,10-12.",
)
@click.option(
    "--num", metavar="N", type=int, default=3, show_default=True, help="Number of documents, packs or samples to show."
)
@click.option(
    "--random",
    metavar="SEED",
    type=int,
    help="Choose them at random; the same SEED chooses the same.",
)
@click.option("--longest", is_flag=True, help="Show the N longest documents.")
@click.option("--least-trained", is_flag=True, help="Show the N documents with the smallest share of trained tokens.")
@click.option("--pack", "seq_len", metavar="N", type=int, help="Show packs of N tokens instead of documents.")
@click.option(
    "--strategy",
    metavar="NAME",
    help="With --pack: best_fit, best_fit_split, greedy, first_fit or wrapped (default: best_fit).",
)
@click.option("--key", metavar="NAME", help="Show only this key of a store, or the sample with this key.")
@click.option(
    "--max-tokens",
    metavar="N",
    type=int,
    default=2048,
    show_default=True,
    help="Maximum number of tokens shown of a sequence.",
)
@click.option(
    "--tokenizer", metavar="PATH", help="A tokenizer.json or its folder (default: the tokeniser of the store)."
)
@click.option("--any-tokenizer", is_flag=True, help="Use --tokenizer even if the store was made with another one.")
@click.option("--ids", is_flag=True, help="Show ids instead of text.")
@click.option(
    "--plain", is_flag=True, help="Write [[trained]] instead of using colours; default if the output is not a terminal."
)
@click.option("--html", "html", metavar="FILE", help="Write a self-contained page, with statistics of the store.")
@click.option(
    "--dialect", metavar="NAME", help="Program that wrote .bin/.idx, if the bytes do not show it: megatron, neox, ..."
)
@part_options
@click.option(
    "--max-chars",
    metavar="N",
    type=int,
    default=2000,
    show_default=True,
    help="Maximum number of characters shown of each text.",
)
@click.option(
    "--images",
    metavar="HOW",
    help="How to draw pictures: terminal, blocks or none (default: the best that the terminal can do).",
)
@click.option(
    "--order",
    metavar="NAME",
    default="full",
    show_default=True,
    help="Order of a metadataset: full, blocks, shards or none.",
)
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of the order of a metadataset.")
@click.option(
    "--global-batch-size",
    metavar="B",
    type=int,
    help="Samples per step, for a metadataset whose schedule counts in steps.",
)
@json_option
@click.pass_context
def preview(ctx: click.Context, /, path: str, html: str | None, plain: bool, as_json: bool, **_: Any) -> None:
    """Show documents of the store at PATH as text, and which of their tokens are trained.

    By default the tokeniser is the one that the store was made with. Roles are shown if special tokens mark them.
    Conversations, preference pairs, groups and prompts are recognised by their keys.

    For tar shards, Energon datasets and other samples with named parts, the command shows text, pictures, video and
    sound. For a metadataset (.yaml) it shows the samples of one split, by default train, in the order of the mix, each
    with its source.
    """
    options = given_options(ctx, "path", "html", "plain", "as_json")
    if html is not None:
        check_page_name(html)
    if "samples" in options:
        options["samples"] = numbers(options["samples"])
    kind, to_terminal = inspect.kind_of(path), html is None and not as_json
    inspect.check_fit(path, kind, options, inspect.PREVIEW_FITS)
    options["packing"] = _packing(options.pop("seq_len", None), options.pop("strategy", None))
    images = options.pop("images", None)
    way = "none" if kind == "tokens" else inspect.choose_images(images, sys.stdout, os.environ, plain=plain)
    options["pictures"] = html is not None or (to_terminal and way != "none")
    with inspect.open_preview(path, **options, with_figures=not to_terminal) as found:
        if html is not None:
            write_page(html, _page_of(found), quiet=as_json)
        if as_json:
            print_json(found)
        elif to_terminal:
            style = inspect.Style.of(sys.stdout, plain=plain)
            for line in inspect.lines(found.shown(), style, inspect.drawer(way)):
                click.echo(line, color=True)


def numbers(given: str) -> tuple[int, ...]:
    """Parse numbers and ranges: ``0,5,10-12`` becomes 0, 5, 10, 11, 12.

    Raises:
        ConfigError: the text has another form, or names too many.
    """
    found: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise ConfigError(f"--documents {given}: {part!r} is neither a number nor a range; write them as 0,5,10-12")
        begin, end = int(first), int(last or first) + 1
        if begin >= end:
            raise ConfigError(f"--documents {given}: the range {part!r} is empty; write the smaller number first")
        if len(found) + end - begin > inspect.MAX_SAMPLES:
            raise ConfigError(f"--documents {given}: at most {inspect.MAX_SAMPLES:,} are shown at once")
        found += range(begin, end)
    return tuple(found)


def _packing(seq_len: int | None, strategy: str | None) -> Packing | None:
    given = {"seq_len": seq_len, "strategy": strategy}
    found = packing_of(given, "--strategy needs --pack N, the length of a pack")
    if found is None or found.cuts:
        return found
    # As in `headrace info --pack`: strategies that do not split long documents truncate them.
    return packing_of({**given, "over_long": "truncate_right"}, "")


def check_page_name(name: str) -> None:
    """Raise ConfigError unless a name ends in .html or .htm, so that no data is replaced by mistake."""
    if not name.lower().endswith((".html", ".htm")):
        raise ConfigError(f"--html {name}: the name of the page must end in .html")


def _page_of(found: inspect.Report | inspect.OpenPreview) -> str:
    from headrace.ui import page_of

    return page_of(found)


def write_page(name: str, text: str, *, quiet: bool) -> None:
    """Write a page atomically, and print its name and size.

    Raises:
        OutputError: it cannot be written.
    """
    data = text.encode()
    write_file(name, data)
    if not quiet:
        click.echo(f"{name}: {size(len(data))}")


@click.command(
    cls=Command,
    urls=("recipe", "input_path", "tokenizer"),
    name="render",
    short_help="Show what a recipe makes of one record, and why.",
)
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "--record", metavar="N", type=int, required=True, help="Number of the record, counted from 0 over all inputs."
)
@click.option("--input", "input_path", metavar="FILE", help="Read this file instead of the only input of the recipe.")
@click.option("--tokenizer", metavar="PATH", help="A tokenizer.json or its folder, if the recipe names none.")
@click.option("--now", metavar="TIME", help="Time that the template sees, as 2026-03-01T23:59 (default: now).")
@click.option(
    "--plain", is_flag=True, help="Write [[trained]] instead of using colours; default if the output is not a terminal."
)
@click.option("--html", "html", metavar="FILE", help="Write a self-contained page.")
@json_option
def render(recipe: str, record: int, plain: bool, html: str | None, as_json: bool, **options: Any) -> None:
    """Show one record of the inputs of RECIPE, step by step.

    Shows its layout, its messages, the text that the template makes of them, the tokens, which of them are trained and
    why, and what is cut off. If the record is dropped or refused, the reason is shown. Nothing is written.
    """
    if html is not None:
        check_page_name(html)
    with ProgressBar(quiet=as_json) as bar:
        rendering = inspect.render(recipe, record, **options, on_progress=bar.update)
    if html is not None:
        write_page(html, _page_of(rendering), quiet=as_json)
    if as_json:
        print_json(rendering)
    elif html is None:
        lines = inspect.lines(rendering.shown(), inspect.Style.of(sys.stdout, plain=plain))
        click.echo("\n".join(lines), color=True)
