"""``headrace preview`` of samples: its options, and what it draws."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.cli.command import part_options, print_json
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cli.media.mix_preview import MixPreview
    from headrace.cli.media.preview import SamplePreviewOptions, StorePreview

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
    """The options for samples alone, and for mixes of them."""
    for option in (
        click.option(
            "--global-batch-size", metavar="B", type=int, help="Of a metadataset whose schedule counts in steps."
        ),
        click.option(
            "--seed", metavar="N", type=int, default=0, show_default=True, help="Of the order of a metadataset."
        ),
        click.option(
            "--order",
            metavar="NAME",
            default="full",
            show_default=True,
            help="Of a metadataset: full, blocks, shards or none.",
        ),
        click.option(
            "--images",
            metavar="HOW",
            help="Of samples: pictures as the terminal can, by blocks, or none.",
        ),
        click.option(
            "--max-chars", metavar="N", type=int, default=2000, show_default=True, help="Show so much of each text."
        ),
    ):
        command = option(command)
    return part_options(command)


def refuse_sample_options(path: str, named: Collection[str]) -> None:
    """Raise ConfigError where an option is for samples, and PATH holds tokens."""
    _refuse(path, named, _FOR_SAMPLES, "is for samples with named parts; this is a store of tokens")
    _refuse_mix_options(path, named)


def preview(
    path: str, numbers: tuple[int, ...] | None, given: dict[str, Any], named: Collection[str], *, as_json: bool
) -> bool:
    """Show samples of a store, or of a metadataset; False where there are none at the path, but maybe tokens.

    Raises:
        HeadraceError: as `open_preview` and `MixPreview`; or an option is for something else.
    """
    from headrace.cli.media.opening import SampleOptions
    from headrace.cli.media.preview import SamplePreviewOptions
    from headrace.cli.media.terminal_images import choose_images, drawer
    from headrace.stores.sample_layouts import sample_layout

    mixes = path.endswith(".yaml")
    if not mixes and sample_layout(path) is None:
        return False
    if mixes:
        _refuse(path, named, ("split_config", "dataset_config"), "is what a metadataset says itself of each dataset")
    else:
        _refuse_mix_options(path, named)
    _refuse(path, named, _FOR_TOKENS, "is for stores of tokens; this one holds samples")
    if given["key"] is not None and (numbers is not None or "num" in named):
        raise ConfigError("--key names the one sample to show: leave out --samples and --num")
    if given["max_chars"] < 1:
        raise ConfigError(f"--max-chars {given['max_chars']}: at least 1 character is shown")
    html = given["html"]
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
            from headrace.cli.media.page import sample_page

            write_file(html, sample_page(found).encode(), quiet=as_json)
        if as_json:
            _print_json(found)
        elif to_terminal:
            from headrace.cli.media.lines import preview_lines

            for line in preview_lines(found, drawer(images)):
                click.echo(line, color=True)
    return True


def _opened(
    path: str, options: SamplePreviewOptions, given: dict[str, Any], *, mixes: bool
) -> StorePreview | MixPreview | None:
    if mixes:
        from headrace.cli.media.mix_preview import MixOptions, MixPreview

        mix = {name: given[name] for name in ("split_part", *_FOR_MIXES)}
        return MixPreview(path, options, MixOptions(**mix))
    from headrace.cli.media.preview import open_preview

    return open_preview(path, options)


def write_file(name: str, data: bytes, *, quiet: bool) -> None:
    """Write a file, whole or not at all, and say so.

    Raises:
        OutputError: it cannot be written.
    """
    from headrace.cli.figures import size
    from headrace.io.atomic import atomic_write

    atomic_write(name, data)
    if not quiet:
        click.echo(f"{name}: {size(len(data))}")


def _print_json(found: StorePreview | MixPreview) -> None:
    import msgspec

    from headrace.cli.media.texts import writable

    samples = [msgspec.to_builtins(sample.shown) for sample in found]
    print_json(writable({**msgspec.to_builtins(found.facts), "samples": samples}))


def _refuse_mix_options(path: str, named: Collection[str]) -> None:
    _refuse(path, named, _FOR_MIXES, "is for metadatasets, which end in .yaml")


def _refuse(path: str, named: Collection[str], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name in named:
            raise ConfigError(f"{path}: --{_OPTIONS.get(name, name).replace('_', '-')} {why}")
