"""The maker of a recipe, exactly as a run of it makes one."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from tokenizers import Tokenizer

from headrace.prepare.messages import Making
from headrace.prepare.record_encoder import make_maker
from headrace.prepare.resolving import find_template, find_tokenizer
from headrace.prepare.tokenizer import find_end_names
from headrace.samples.maker import SampleMaker
from headrace.samples.recipe import Recipe
from headrace.samples.templates import ChatTemplate


class OpenedMaker(NamedTuple):
    """A maker, and what it was made of."""

    maker: SampleMaker
    tokenizer: Tokenizer
    template: ChatTemplate | None


def open_maker(recipe: Recipe, source: int, tokenizer: str | None = None) -> OpenedMaker:
    """The maker for input number ``source`` of a recipe whose layouts are said.

    Args:
        recipe: the recipe.
        source: number of the input.
        tokenizer: where the recipe names none.

    Raises:
        ConfigError: there is no tokeniser, it or the template cannot be read, or the maker refuses the recipe.
    """
    loaded, folder = find_tokenizer(recipe, tokenizer)
    recipe, setup = find_template(recipe, folder, {})
    making = Making(
        recipe=msgspec.json.encode(recipe),
        sources=(source,),
        template=None if setup is None else msgspec.json.encode(setup),
        special_tokens=find_end_names(loaded, folder, setup).tokens,
    )
    return OpenedMaker(
        make_maker(making, loaded.json, source=source),
        loaded.instance(),
        None if setup is None else ChatTemplate(setup),
    )
