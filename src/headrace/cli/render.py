"""``headrace render``: show what a recipe makes of one record, step by step."""

from __future__ import annotations

import sys
from typing import Any

import click

from headrace import inspect
from headrace.cli.command import Command, json_option, print_json
from headrace.cli.preview import check_page_name, write_page
from headrace.cli.progress import ProgressBar


@click.command(cls=Command, name="render", short_help="Show what a recipe makes of one record, and why.")
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
def command(recipe: str, record: int, plain: bool, html: str | None, as_json: bool, **options: Any) -> None:
    """Show one record of the inputs of RECIPE, step by step.

    Shows its layout, its messages, the text that the template makes of them, the tokens, which of them are trained and
    why, and what is cut off. If the record is dropped or refused, the reason is shown. Nothing is written.
    """
    if html is not None:
        check_page_name(html)
    with ProgressBar(quiet=as_json) as bar:
        rendering = inspect.render(recipe, record, **options, on_progress=bar.update)
    if html is not None:
        write_page(html, inspect.page_of(rendering), quiet=as_json)
    if as_json:
        print_json(rendering)
    elif html is None:
        lines = inspect.rendering_lines(rendering, inspect.Style.of(sys.stdout, plain=plain))
        click.echo("\n".join(lines), color=True)
