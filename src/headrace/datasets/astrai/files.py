"""AstrAI's functions of whole files: which format lies at a path, and tensors into it and out of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import check_local
from headrace.stores import KeyedStore, KeyedWriter, open_keys, write_hdf5

if TYPE_CHECKING:
    from torch import Tensor

FormatName = Literal["h5", "bin", "jsonl"]


class NoDataError(StoreError, FileNotFoundError):
    """There is nothing to load at a path."""


def detect_format(path: str | os.PathLike[str]) -> FormatName:
    """Which of AstrAI's formats lies at a path; of several in a folder ``"h5"`` is before ``"bin"`` before ``"jsonl"``.

    Hidden files and folders are left out, and a pair of ``.bin`` and ``.idx`` is ``"bin"``, too.

    Raises:
        ConfigError: a file of another suffix; it is a ValueError.
        NoDataError: nothing is there; it is a FileNotFoundError.
    """
    check_local(path)
    place = Path(path)
    if place.is_file():
        suffix = place.suffix.lower()
        if suffix in (".h5", ".hdf5"):
            return "h5"
        if suffix == ".jsonl":
            return "jsonl"
        raise ConfigError(f"Unsupported file format: {suffix or place.name!r}; a file is .h5, .hdf5 or .jsonl")
    found = set()
    for _, folders, files in os.walk(place, followlinks=False):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found |= {name if name == "meta.json" else Path(name).suffix.lower() for name in files if name[0] != "."}
    if found & {".h5", ".hdf5"}:
        return "h5"
    if ".bin" in found and found & {"meta.json", ".idx"}:
        return "bin"
    if ".jsonl" in found:
        return "jsonl"
    raise NoDataError(f"No supported data files found at {place}; looked for .h5, .bin with meta.json, and .jsonl")


def save_h5(folder: str | os.PathLike[str], name: str, tensors: Mapping[str, Sequence[Tensor]]) -> None:
    """Write ``folder/name.h5``, each tensor a dataset of its key; the folder is made. The file appears whole.

    Raises:
        ConfigError: a name that leaves the folder, no keys, or a dtype that the format does not have.
        InputError: tensors of several dtypes in a key, or of more dimensions than one.
        OutputError: the system refuses.
        MissingExtraError: h5py is not installed.
    """
    check_local(folder)
    if Path(name).name != name:
        raise ConfigError(f"{name!r} is not the name of a file in {os.fspath(folder)}")
    _make(Path(folder))
    write_hdf5(Path(folder) / f"{name}.h5", {key: _arrays(key, parts) for key, parts in tensors.items()})


def load_h5(
    path: str | os.PathLike[str], share_memory: bool = True, *, order: Literal["number", "name"] = "number"
) -> dict[str, list[Tensor]]:
    """Every dataset below a path, in memory: for each key its tensors, files in natural order.

    Args:
        path: a folder or a file.
        share_memory: move the tensors to shared memory, as ``Tensor.share_memory_`` does.
        order: of the datasets in a file; ``"name"`` is AstrAI's own, data_10 before data_2.

    Raises:
        StoreError: no such files, or they are damaged, or of different keys.
        MissingExtraError: h5py is not installed.
    """
    check_local(path)
    import torch

    tensors = {}
    for key, store in open_keys(path, dataset_order=order).items():
        parts = [torch.from_numpy(store.document(number).copy()) for number in range(len(store))]
        tensors[key] = [part.share_memory_() if share_memory else part for part in parts]  # type: ignore[no-untyped-call]
    return tensors


def save_bin(
    folder: str | os.PathLike[str], tensors: Mapping[str, Sequence[Tensor]], record_keys: Iterable[str] | None = None
) -> None:
    """Write ``folder/<key>.bin`` and ``folder/meta.json``, byte for byte as AstrAI; the folder is made.

    Args:
        folder: where.
        tensors: for each key its tensors, which are joined.
        record_keys: the keys whose tensors are records: ``meta.json`` gets their offsets.

    Raises:
        ConfigError: an unknown or impossible key, or a dtype that the format does not have.
        InputError: a key without tensors or with several dtypes, or keys with different numbers of records.
        OutputError: the system refuses.
    """
    check_local(folder)
    arrays = {key: _arrays(key, parts) for key, parts in tensors.items()}
    for key, parts in arrays.items():
        if len({part.dtype for part in parts}) != 1:
            found = ", ".join(dict.fromkeys(str(part.dtype) for part in parts)) or "none"
            raise InputError(f"{os.fspath(folder)}: key {key!r} needs tensors of one dtype; found {found}")
    records: Collection[str] = tuple(record_keys or ())
    _make(Path(folder))
    dtypes = {key: parts[0].dtype for key, parts in arrays.items()}
    with KeyedWriter(folder, dtypes=dtypes, offsets=records) as writer:
        writer.add_documents(
            {key: np.concatenate(parts) for key, parts in arrays.items()},
            {key: np.array([len(part) for part in arrays[key]], np.int64) for key in records},
        )
        writer.finish()


def load_bin(folder: str | os.PathLike[str]) -> dict[str, list[Tensor]]:
    """For each key one tensor over its mapped file. What is written into it stays in this process, and off the disk.

    Raises:
        StoreError: no ``meta.json``, or the folder is damaged.
    """
    check_local(folder)
    import torch

    store = KeyedStore(folder)
    tensors = {}
    for key, dtype in store.dtypes.items():
        count = store.with_main(key).num_tokens
        # A file of no bytes cannot be mapped.
        values = np.memmap(Path(folder) / f"{key}.bin", dtype, "c", shape=(count,)) if count else np.empty(0, dtype)
        tensors[key] = [torch.from_numpy(values)]
    return tensors


def _arrays(key: str, tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The tensors of a key as arrays.

    Raises:
        InputError: something else, or a dtype that NumPy does not have, as bfloat16.
    """
    import torch

    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 1:
            raise InputError(f"key {key!r}: expected one-dimensional tensors, found {type(tensor).__name__} {tensor!r}")
        if tensor.dtype == torch.bfloat16:
            raise InputError(f"key {key!r}: bfloat16 is in none of the formats; convert it to float32 first")
    return [tensor.detach().cpu().numpy() for tensor in tensors]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot make the folder: {error.strerror}") from error
