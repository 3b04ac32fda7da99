"""What data were made of, as plain data, and how they are made again.

    Dataset .recipe -------------------------> dict -------------------------> Maker.dataset, by DATASETS
    Mix .recipe, its children -- recipe_of --> MixRecipe over numbers of datasets -- data_of --> Mix, by MIXES

Each class of datasets and mixes has ``recipe`` and, beside it, ``from_recipe``. What a recipe does not tell whole is
refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, Final

import msgspec

from headrace.datasets.dataset import Dataset
from headrace.datasets.exclusions import masks_of
from headrace.datasets.mix import Mix
from headrace.errors import ConfigError
from headrace.plan.recipe import OURS

MIXES: Final = {
    "blend": "headrace.datasets.blend:Blend",
    "concat": "headrace.datasets.lengths:Concat",
    "limit": "headrace.datasets.lengths:Limit",
    "repeat": "headrace.datasets.lengths:Repeat",
    "stages": "headrace.datasets.blend:ScheduledBlend",
    "subset": "headrace.datasets.lengths:Subset",
}
"""The kind of a mix -> its class, whose ``from_recipe`` makes it again."""

DATASETS: Final = {
    "windows": "headrace.datasets.windows:WindowDataset",
    "packed_sequences": "headrace.datasets.packed_sequences:PackedSequenceDataset",
    "SFTDataset": "headrace.datasets.records:SFTDataset",
    "PreferenceDataset": "headrace.datasets.rl_records:PreferenceDataset",
    "GroupDataset": "headrace.datasets.rl_records:GroupDataset",
    "PromptDataset": "headrace.datasets.rl_records:PromptDataset",
    "MediaDataset": "headrace.datasets.media.dataset:MediaDataset",
    "mapped": "headrace.datasets.mapped:MapDataset",
    "encoded": "headrace.datasets.encoded.dataset:EncodedDataset",
}
"""The kind of a dataset -> its class, whose ``from_recipe`` makes it again."""

_FACES: Final = ("headrace", "headrace.encoders", "headrace.samples.media")
"""The packages that export the classes and functions of ours which a recipe may name."""


class MixRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mix as plain data: its kind, its children by name, and its own recipe. A dataset stands there by a number."""

    kind: str
    children: dict[str, DataRecipe]
    options: dict[str, Any]


DataRecipe = MixRecipe | int


def recipe_of(data: Dataset | Mix, number: Callable[[Dataset], int]) -> DataRecipe:
    """Return data as plain data; ``number`` says by which number a dataset is known.

    Raises:
        ConfigError: a mix is of a class that has no recipe.
    """
    if isinstance(data, Dataset):
        return number(data)
    known = MIXES.get(data.kind)
    if known is None or type(data).node is not resolve_name(known).node:
        raise ConfigError(
            f"{type(data).__name__} is a mix that cannot be written down, since it has no recipe: use one of "
            "headrace.datasets, such as Blend or Concat"
        )
    children = {name: recipe_of(child, number) for name, child in data.children.items()}
    return MixRecipe(kind=data.kind, children=children, options=data.recipe)


def data_of(recipe: DataRecipe, dataset: Callable[[int], Dataset]) -> Dataset | Mix:
    """Return the data of a recipe over the datasets of its numbers.

    Raises:
        ConfigError: there is no such kind of mix, or the recipe contradicts itself.
        LookupError: options are missing.
    """
    if not isinstance(recipe, MixRecipe):
        return dataset(recipe)
    if recipe.kind not in MIXES:
        raise ConfigError(f"there is no mix of the kind {recipe.kind!r}; the kinds are {', '.join(MIXES)}")
    children = {name: data_of(child, dataset) for name, child in recipe.children.items()}
    made: Mix = resolve_name(MIXES[recipe.kind]).from_recipe(recipe.options, children)
    return made


class Maker:
    """Makes datasets again of their recipes.

    Args:
        open_store: opens the store of the dataset. It is told whether samples are needed, and not tokens.
        trust_code: import functions and encoders by their names.
    """

    def __init__(self, open_store: Callable[[bool], Any], *, trust_code: bool) -> None:
        self._open_store = open_store
        self.trust_code = trust_code

    def dataset(self, recipe: Mapping[str, Any]) -> Any:
        """Return the dataset of a recipe.

        Raises:
            ConfigError: the recipe is not enough to make it.
        """
        if (masks := masks_of(recipe)) is not None:
            return self.dataset(masks.recipe).without(masks.documents, masks.pad_id)
        known = DATASETS.get(str(recipe.get("kind")))
        if known is None:
            raise ConfigError(f"a recipe of the kind {recipe.get('kind')!r} is not enough to make the dataset")
        return resolve_name(known).from_recipe(recipe, self)

    def store(self, *, as_samples: bool = False) -> Any:
        """Return the open store of the dataset. Raises ConfigError if it has not exactly one."""
        return self._open_store(as_samples)

    def named(self, name: str, what: str) -> Any:
        """Return the class or function with a recorded name. Raises ConfigError if the code is not to be trusted."""
        if not self.trust_code:
            raise ConfigError(
                f"the {what} {name} is code that is not imported, because importing runs it: pass trust_code=True if "
                "you trust the file"
            )
        return named_thing(name)


def named_thing(name: str) -> Any:
    """Import the class or function that was recorded under a name; undoes `recorded_name`. Runs its module's code.

    Raises:
        ConfigError: it is defined within a function, or in the program that was run; or it cannot be imported.
    """
    if "<" in name or name.startswith("__main__."):
        raise ConfigError(f"{name} cannot be imported by its name: define it at the top of a module")
    try:
        if name.startswith(OURS):
            first = name.removeprefix(OURS).partition(".")[0]
            face = next((one for one in _FACES if first in resolve_name(one).__all__), "headrace")
            return resolve_name(name.replace(OURS, f"{face}:"))
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be imported: {error}") from error
