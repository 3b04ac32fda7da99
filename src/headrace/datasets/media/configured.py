"""What a ``dataset.yaml`` says of samples, as arguments of `MediaDataset`. Its code runs only where it is trusted."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.samples.media import CrudeSample, SampleDecoder, load_function, resolve_sample_type
from headrace.stores.energon import DatasetConfig, Reference
from headrace.stores.energon.splits import config_path

_OF_THE_RUN: Final = ("max_samples_per_sequence", "parallel_shard_iters", "shuffle_over_epochs", "training")
"""What Energon's file may say of the order, which here is that of the run."""


class DatasetFunction:
    """A function of a Python file in ``.nv-meta``, which the user trusts. Pickles as where it lies."""

    def __init__(self, root: Path, reference: str, default: str, *, trust_code: bool) -> None:
        self.reference = reference
        self._root = root
        self._default = default
        self._function = load_function(reference, default, self._read, trust_code=trust_code)

    def __call__(self, given: Any) -> Any:
        """What the function makes of it."""
        return self._function(given)

    def __str__(self) -> str:
        return self.reference

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_again, (self._root, self.reference, self._default)

    def _read(self, name: str) -> str:
        path = config_path(self._root, name)
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}; the dataset.yaml names it") from error


def configured(config: DatasetConfig, *, trust_code: bool) -> dict[str, Any]:
    """``sample_type``, ``field_map``, ``sample_loader`` and ``part_filter`` of a file, and a ``decoder`` if it has one.

    Raises:
        ConfigError: code that is not trusted; a class or an option that has no meaning here.
    """
    found: dict[str, Any] = dict.fromkeys(("sample_type", "field_map", "sample_loader", "part_filter"))
    if config.kind == "other":
        raise ConfigError(
            f"{config.path}: the class {config.class_ref} is Energon's or your own way to read, and not one of samples;"
            " make MediaDataset(store, sample_type, field_map) yourself"
        )
    _check_options(config)
    root = config.path.parent.parent
    found["part_filter"] = _function(config.part_filter, root, "part_filter", trust_code)
    if config.kind == "crude" or config.sample_type is None:
        found["sample_type"] = CrudeSample
    else:
        named = config.sample_type
        found["sample_type"] = resolve_sample_type(named.module, named.name, trust_code=trust_code)
        found["field_map"] = config.field_map
        found["sample_loader"] = _function(config.sample_loader, root, "sample_loader", trust_code)
    if config.options.get("decoder") is not None:
        found["decoder"] = _decoder(config)
    return found


def _check_options(config: DatasetConfig) -> None:
    for name in config.options:
        if name not in (*_OF_THE_RUN, "decoder"):
            raise ConfigError(
                f"{config.path}: {name} says which samples are read; take it out and say it where the dataset is opened"
            )


def _function(named: Reference | str | tuple[str, ...] | None, root: Path, default: str, trust_code: bool) -> Any:
    if named is None or isinstance(named, tuple):
        return named
    if isinstance(named, str):
        return DatasetFunction(root, named, default, trust_code=trust_code)
    if not trust_code:
        raise ConfigError(
            f"the {default} {named} lies in a module that is not imported, because importing runs its code; say"
            " trust_code=True if you trust whoever wrote the dataset"
        )
    try:
        return getattr(importlib.import_module(named.module), named.name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {default} {named} cannot be imported: {error}") from error


def _decoder(config: DatasetConfig) -> SampleDecoder:
    given = config.options["decoder"]
    options = dict(given) if isinstance(given, dict) else {}
    names = (options.pop("__module__", None), options.pop("__class__", None))
    if names[1] != "SampleDecoder":
        raise ConfigError(f"{config.path}: decoder: only a SampleDecoder is known, found {given!r:.200}")
    try:
        return SampleDecoder(**options)
    except TypeError as error:
        raise ConfigError(f"{config.path}: decoder: {error}") from error


def _function_again(root: Path, reference: str, default: str) -> DatasetFunction:
    return DatasetFunction(root, reference, default, trust_code=True)
