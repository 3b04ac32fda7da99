"""``headrace preview``: show documents as text, with the tokens that are trained, and samples with their pictures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.cli.command import Command, is_given, json_option, part_options, print_json
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.inspect.sample_preview import MixPreview, SamplePreviewOptions, StorePreview
    from headrace.plan.packing import Packing
    from headrace.stores import Dialect

F = TypeVar("F", bound=Callable[..., Any])

_FOR_TOKENS: Final = (
    "seed_of_choice",
    "longest",
    "least_trained",
    "pack",
    "strategy",
    "max_tokens",
    "tokenizer",
    "any_tokenizer",
    "ids",
    "dialect",
)
_OPTIONS: Final = {"seed_of_choice": "random"}
_FOR_SAMPLES: Final = ("split_part", "split_config", "dataset_config", "max_chars", "images")
_FOR_MIXES: Final = ("order", "seed", "global_batch_size")


def sample_options(command: F) -> F:
    """Add the options for samples and for metadatasets."""
    for option in (
        click.option(
            "--global-batch-size",
            metavar="B",
            type=int,
            help="Samples per step, for a metadataset whose schedule counts in steps.",
        ),
        click.option(
            "--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of the order of a metadataset."
        ),
        click.option(
            "--order",
            metavar="NAME",
            default="full",
            show_default=True,
            help="Order of a metadataset: full, blocks, shards or none.",
        ),
        click.option(
            "--images",
            metavar="HOW",
            help="How to draw pictures: terminal, blocks or none (default: the best that the terminal can do).",
        ),
        click.option(
            "--max-chars",
            metavar="N",
            type=int,
            default=2000,
            show_default=True,
            help="Maximum number of characters shown of each text.",
        ),
    ):
        command = option(command)
    return part_options(command)


def refuse_sample_options(path: str, named: Collection[str]) -> None:
    """Raise ConfigError if an option for samples is given, and PATH holds tokens."""
    _refuse(path, named, _FOR_SAMPLES, "is for samples with named parts; this is a store of tokens")
    _refuse_mix_options(path, named)


def preview(
    path: str, numbers: tuple[int, ...] | None, given: dict[str, Any], named: Collection[str], *, as_json: bool
) -> bool:
    """Show samples of a dataset or a metadataset.

    Returns:
        False if the path holds no samples; it may hold tokens.

    Raises:
        HeadraceError: any that `open_preview` and `MixPreview` raise; or an option is for another kind of data.
    """
    from headrace.inspect.sample_preview import SamplePreviewOptions
    from headrace.inspect.samples import SampleOptions
    from headrace.stores.sample_layouts import sample_layout

    mixes = path.endswith(".yaml")
    if not mixes and sample_layout(path) is None:
        return False
    if mixes:
        _refuse(
            path,
            named,
            ("split_config", "dataset_config"),
            "does not apply: the metadataset names these files for each dataset",
        )
    else:
        _refuse_mix_options(path, named)
    _refuse(path, named, _FOR_TOKENS, "is for stores of tokens; this one holds samples")
    if given["key"] is not None and (numbers is not None or "num" in named):
        raise ConfigError("--key names the one sample to show: leave out --samples and --num")
    if given["max_chars"] < 1:
        raise ConfigError(f"--max-chars {given['max_chars']}: must be at least 1")
    html = given["html"]
    from headrace.inspect.terminal_images import choose_images, drawer

    images = choose_images(given["images"], sys.stdout, os.environ, plain=given["plain"])
    to_terminal = html is None and not as_json
    options = SamplePreviewOptions(
        numbers=numbers,
        num=given["num"],
        key=given["key"],
        max_chars=given["max_chars"],
        pictures=html is not None or (to_terminal and images != "none"),
        dataset=SampleOptions(**{name: given[name] for name in ("split_part", "split_config", "dataset_config")}),
    )
    opened = _opened(path, options, given, mixes=mixes)
    if opened is None:
        return False
    with opened as found:
        if html is not None:
            from headrace.inspect.sample_lines import sample_page

            write_file(html, sample_page(found).encode(), quiet=as_json)
        if as_json:
            _print_json(found)
        elif to_terminal:
            from headrace.inspect.sample_lines import preview_lines

            for line in preview_lines(found, drawer(images)):
                click.echo(line, color=True)
    return True


def _opened(
    path: str, options: SamplePreviewOptions, given: dict[str, Any], *, mixes: bool
) -> StorePreview | MixPreview | None:
    if mixes:
        from headrace.inspect.sample_preview import MixOptions, MixPreview

        mix = {name: given[name] for name in ("split_part", *_FOR_MIXES)}
        return MixPreview(path, options, MixOptions(**mix))
    from headrace.inspect.sample_preview import open_preview

    return open_preview(path, options)


def write_file(name: str, data: bytes, *, quiet: bool) -> None:
    """Write a file atomically, and print its name and size.

    Raises:
        OutputError: it cannot be written.
    """
    from headrace.inspect.figures import size
    from headrace.io.atomic import atomic_write

    atomic_write(name, data)
    if not quiet:
        click.echo(f"{name}: {size(len(data))}")


def _print_json(found: StorePreview | MixPreview) -> None:
    import msgspec

    print_json({**msgspec.to_builtins(found.facts), "samples": [sample.shown for sample in found]})


def _refuse_mix_options(path: str, named: Collection[str]) -> None:
    _refuse(path, named, _FOR_MIXES, "is for metadatasets, which end in .yaml")


def _refuse(path: str, named: Collection[str], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in named:
            raise ConfigError(f"{path}: --{_OPTIONS.get(name, name).replace('_', '-')} {why}")


@click.command(cls=Command, name="preview", short_help="Show samples of a store, and what is trained.")
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
    "seed_of_choice",
    metavar="SEED",
    type=int,
    help="Choose them at random; the same SEED chooses the same.",
)
@click.option("--longest", is_flag=True, help="Show the N longest documents.")
@click.option("--least-trained", is_flag=True, help="Show the N documents with the smallest share of trained tokens.")
@click.option("--pack", metavar="N", type=int, help="Show packs of N tokens instead of documents.")
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
@sample_options
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, path: str, samples: str | None, num: int,
    seed_of_choice: int | None, longest: bool, least_trained: bool, pack: int | None, strategy: str | None,
    key: str | None,
    max_tokens: int, tokenizer: str | None, any_tokenizer: bool, ids: bool, plain: bool, html: str | None,
    dialect: Dialect | None, as_json: bool, **media: Any,
) -> None:  # fmt: skip
    """Show documents of the store at PATH as text, and which of their tokens are trained.

    By default the tokeniser is the one that the store was made with. Roles are shown if special tokens mark them.
    Conversations, preference pairs, groups and prompts are recognised by their keys.

    For tar shards, Energon datasets and other samples with named parts, the command shows text, pictures, video and
    sound. For a metadataset (.yaml) it shows the samples of one split, by default train, in the order of the mix, each
    with its source.
    """
    named = [name for name in ctx.params if is_given(ctx, name)]
    if html is not None:
        check_page_name(html)
    wanted = None if samples is None else numbers(samples)
    if preview(path, wanted, {**media, "key": key, "num": num, "html": html, "plain": plain}, named, as_json=as_json):
        return
    refuse_sample_options(path, named)
    from headrace.inspect import PreviewOptions, preview_page, preview_store

    if any_tokenizer and tokenizer is None:
        raise ConfigError("--any-tokenizer needs --tokenizer PATH: name the other tokeniser")
    if longest and least_trained:
        raise ConfigError("--longest and --least-trained both say which documents are shown: choose one")
    options = PreviewOptions(
        samples=wanted,
        num=num,
        seed=seed_of_choice,
        by="longest" if longest else "least_trained" if least_trained else None,
        max_tokens=max_tokens,
        packing=_packing(pack, strategy),
        key=key,
        tokenizer=tokenizer,
        any_tokenizer=any_tokenizer,
        ids=ids,
        dialect=dialect,
        with_figures=as_json or html is not None,
    )
    found = preview_store(path, options)
    if html is not None:
        write_page(html, preview_page(found), quiet=as_json)
    if as_json:
        print_json(found)
    elif html is None:
        import sys

        from headrace.inspect.lines import Style, preview_lines

        click.echo("\n".join(preview_lines(found, Style.of(sys.stdout, plain=plain))), color=True)


def numbers(given: str) -> tuple[int, ...]:
    """Parse numbers and ranges: ``0,5,10-12`` becomes 0, 5, 10, 11, 12.

    Raises:
        ConfigError: the text has another form, or names too many.
    """
    from headrace.inspect.documents import MAX_SAMPLES

    found: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise ConfigError(f"--documents {given}: {part!r} is neither a number nor a range; write them as 0,5,10-12")
        begin, end = int(first), int(last or first) + 1
        if begin >= end:
            raise ConfigError(f"--documents {given}: the range {part!r} is empty; write the smaller number first")
        if len(found) + end - begin > MAX_SAMPLES:
            raise ConfigError(f"--documents {given}: at most {MAX_SAMPLES:,} are shown at once")
        found += range(begin, end)
    return tuple(found)


def _packing(pack: int | None, strategy: str | None) -> Packing | None:
    from headrace.plan.packing import Packing

    if pack is None:
        if strategy is not None:
            raise ConfigError("--strategy needs --pack N, the length of a pack")
        return None
    name = strategy or "best_fit"
    # As in `headrace info --pack`: strategies that do not split long documents truncate them.
    cuts = name in ("best_fit_split", "wrapped")
    return Packing(seq_len=pack, strategy=name, over_long="error" if cuts else "truncate_right")  # type: ignore[arg-type]  # checked there


def check_page_name(name: str) -> None:
    """Raise ConfigError unless a name ends in .html or .htm, so that no data is replaced by mistake."""
    if not name.lower().endswith((".html", ".htm")):
        raise ConfigError(f"--html {name}: the name of the page must end in .html")


def write_page(name: str, text: str, *, quiet: bool) -> None:
    """Write a page atomically, and print its name and size.

    Raises:
        OutputError: it cannot be written.
    """
    write_file(name, text.encode(), quiet=quiet)
