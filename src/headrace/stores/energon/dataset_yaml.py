"""Reads and writes ``.nv-meta/dataset.yaml``, which says what the samples are. Nothing that it names is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import yaml

from headrace.config import describe, unknown_keys
from headrace.errors import StoreError
from headrace.io import AnyPath
from headrace.stores.energon.config_file import DATASET_NAME, as_map, as_strings, read_config
from headrace.stores.energon.splits import config_path

STANDARD: Final = "StandardWebdatasetFactory"
CRUDE: Final = "CrudeWebdataset"
FLAVOURS: Final = {
    f"{name}Webdataset": f"{name}Sample"
    for name in (
        "Captioning",
        "Image",
        "ImageClassification",
        "Interleaved",
        "MultiChoiceVQA",
        "OCR",
        "SimilarityInterleaved",
        "Text",
        "VQA",
        "VQAOCR",
        "VidQA",
    )
}
"""The classes from before Energon 7.0, one for each sample type, and their sample types."""

_MODULE: Final = "megatron.energon"
_NAMES: Final = ("__module__", "__class__", "__function__")
_OURS: Final = ("sample_type", "field_map", "sample_loader", "part_filter", "subflavors")
_OPTIONS: Final = (
    "decoder",
    "max_samples_per_sequence",
    "parallel_shard_iters",
    "shuffle_over_epochs",
    "split_config",
    "split_part",
    "subset",
    "training",
)

DatasetKind = Literal["typed", "crude", "other"]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A class or function that a file names by ``__module__`` and ``__class__`` or ``__function__``."""

    module: str
    name: str
    is_function: bool = False
    arguments: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class DatasetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a ``dataset.yaml``.

    Attributes:
        kind: ``"typed"`` for samples of ``sample_type``; ``"crude"`` for samples that a cooker converts; ``"other"``
            for another class, all of whose arguments are in ``options``.
        class_ref: the class that Energon instantiates.
        sample_type: the class of typed samples.
        field_map: for each field where its value is found, such as ``"txt,json[caption]"``; typed samples have either
            this or ``sample_loader``.
        sample_loader: a function, as a reference or as ``"file.py:name"`` relative to ``.nv-meta``.
        part_filter: names of the parts to read, or a function; None reads those that ``field_map`` names, or all.
        subflavors: subflavors of every sample.
        options: further arguments of the class.
        path: the file from which the content was read.
    """

    kind: DatasetKind
    class_ref: Reference
    sample_type: Reference | None = None
    field_map: dict[str, str] | None = None
    sample_loader: Reference | str | None = None
    part_filter: Reference | str | tuple[str, ...] | None = None
    subflavors: dict[str, Any] = {}
    options: dict[str, Any] = {}
    path: AnyPath


def read_dataset(root: AnyPath, dataset_config: str | None = None) -> DatasetConfig | None:
    """Read the ``dataset.yaml`` of a dataset, or a file of another name; None if there is no ``dataset.yaml``.

    Raises:
        StoreError: the file is malformed, has an unknown key, or has keys that exclude each other; or the file of
            another name is missing.
        ConfigError: the name leaves ``.nv-meta``.
    """
    path = config_path(root, dataset_config or DATASET_NAME)
    try:
        found = read_config(path)
    except FileNotFoundError:
        if dataset_config is None:
            return None
        raise StoreError(f"{path}: missing; dataset_config names a file in {path.parent}") from None
    return _checked(as_map(found, str(path)), path)


def _checked(found: dict[str, Any], path: AnyPath) -> DatasetConfig:
    where = str(path)
    rest = dict(found)
    named: dict[str, Any] = {key: rest.pop(key) for key in _NAMES if key in rest}
    class_ref = reference(named, where) if named else Reference(module="megatron.energon", name=STANDARD)
    flavour = FLAVOURS.get(class_ref.name)
    if class_ref.is_function or (class_ref.name not in (STANDARD, CRUDE) and flavour is None):
        return DatasetConfig(kind="other", class_ref=class_ref, options=rest, path=path)
    subflavors = as_map(rest.pop("subflavors", None) or {}, f"{where}: subflavors")
    part_filter = _filter(rest.pop("part_filter", None), f"{where}: part_filter")
    common: dict[str, Any] = {
        "class_ref": class_ref,
        "subflavors": subflavors,
        "part_filter": part_filter,
        "path": path,
    }
    if class_ref.name == CRUDE:
        options = _options(rest, ("subflavors", "part_filter"), where)
        return DatasetConfig(kind="crude", options=options, **common)
    sample_type = _sample_type(rest.pop("sample_type", None), flavour, class_ref, where)
    field_map = _field_map(rest.pop("field_map", None), f"{where}: field_map")
    sample_loader = _function(rest.pop("sample_loader", None), f"{where}: sample_loader")
    options = _options(rest, _OURS, where)
    if (field_map is None) == (sample_loader is None):
        both = "both field_map and sample_loader" if field_map is not None else "neither field_map nor sample_loader"
        raise StoreError(f"{where}: has {both}; typed samples need exactly one of them")
    if sample_loader is not None and part_filter is None:
        raise StoreError(
            f"{where}: has a sample_loader but no part_filter; set part_filter to the parts that it needs, or to a"
            " function"
        )
    if field_map is not None and part_filter is not None:
        raise StoreError(
            f"{where}: part_filter is only for a sample_loader; a field_map already says which parts are read"
        )
    return DatasetConfig(
        kind="typed",
        sample_type=sample_type,
        field_map=field_map,
        sample_loader=sample_loader,
        options=options,
        **common,
    )


def reference(found: dict[str, Any], where: str) -> Reference:
    """Return the class or function that a mapping names. Raises StoreError if it names none, or both."""
    kinds = [key for key in ("__class__", "__function__") if key in found]
    if "__module__" not in found or len(kinds) != 1:
        raise StoreError(
            f"{where}: a class needs __module__ and __class__, a function __module__ and __function__; found"
            f" {', '.join(found)}"
        )
    module, name = found["__module__"], found[kinds[0]]
    for key, value in (("__module__", module), (kinds[0], name)):
        if not isinstance(value, str):
            raise StoreError(f"{where}: {key} must be a name, found {describe(value)}")
    arguments = {key: value for key, value in found.items() if key not in ("__module__", *kinds)}
    return Reference(module=module, name=name, is_function=kinds[0] == "__function__", arguments=arguments)


def _sample_type(value: Any, flavour: str | None, class_ref: Reference, where: str) -> Reference:
    if flavour is not None:
        if value is not None:
            raise StoreError(f"{where}: {class_ref.name} has the sample type {flavour}; remove sample_type")
        return Reference(module=class_ref.module, name=flavour)
    if value is None:
        raise StoreError(
            f"{where}: has no sample_type; add one, with its __module__ and __class__, and a field_map; or, for crude"
            f" samples, write __module__: megatron.energon and __class__: {CRUDE}"
        )
    found = reference(as_map(value, f"{where}: sample_type"), f"{where}: sample_type")
    if found.is_function:
        raise StoreError(f"{where}: sample_type: must be a class, found the function {found}")
    return found


def _field_map(value: Any, where: str) -> dict[str, str] | None:
    if value is None:
        return None
    found = as_map(value, where)
    for field, access in found.items():
        if not isinstance(access, str):
            raise StoreError(
                f"{where}: {field} must name a part, such as jpg or txt,json[caption], found {describe(access)};"
                " quote it"
            )
    return found


def _function(value: Any, where: str) -> Reference | str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return reference(value, where)
    raise StoreError(f"{where}: expected file.py:name or a reference to a function, found {describe(value)}")


def _filter(value: Any, where: str) -> Reference | str | tuple[str, ...] | None:
    return tuple(as_strings(value, where)) if isinstance(value, list) else _function(value, where)


def _options(rest: dict[str, Any], ours: tuple[str, ...], where: str) -> dict[str, Any]:
    for key in rest:
        if key in _OURS:
            raise StoreError(f"{where}: {key} is not for {CRUDE}, whose samples are made by a cooker; remove it")
    for message in unknown_keys(rest, (*ours, *_OPTIONS), f"{where}: "):
        raise StoreError(message)
    return rest


def dataset_yaml(sample_type: str | None, field_map: Mapping[str, str], part_filter: Sequence[str] = ()) -> bytes:
    """Return the content of a ``dataset.yaml``.

    Args:
        sample_type: name of the sample type; None and the names of crude samples make the samples crude.
        field_map: the fields of the sample type, and where each comes from.
        part_filter: the parts of crude samples that are read; if it is empty, all parts.
    """
    if sample_type in (None, CRUDE, "CrudeSample"):
        content: dict[str, Any] = {"__module__": _MODULE, "__class__": CRUDE}
        if part_filter:
            content["part_filter"] = list(part_filter)
    else:
        content = {
            "sample_type": {"__module__": _MODULE, "__class__": sample_type},
            "field_map": dict(field_map),
        }
    text: str = yaml.safe_dump(content, sort_keys=False)
    return text.encode()
