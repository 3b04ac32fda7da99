"""The HDF5 layout of AstrAI: where the values of each key lie in the file.

    /<key>/              a group a key
    /<key>/data_<i>      1-D, contiguous, no filters, no attributes: the values of one document, or of many

Every dataset is one range of bytes of the file. So h5py is asked once, when the file is opened, where each begins;
values are then read as from any other file, mapped or by ``preadv``.

Source: AstrAI 1.3.7 to 1.3.11, ``save_h5`` and ``load_h5``. The page ``docs/formats/hdf5.md`` says what is refused.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np

from headrace.errors import ConfigError, MissingExtraError, StoreError
from headrace.io import natural_key
from headrace.stores.keyed_layout import DTYPE_NAMES
from headrace.stores.store import IntArray

HDF5_SUFFIXES: Final = (".h5", ".hdf5")
DatasetOrder = Literal["number", "name"]


class Segments(msgspec.Struct, frozen=True):
    """The datasets of one key, in order.

    Attributes:
        names: of the datasets.
        dtype: of all of them.
        offsets: (n,) int64, the byte of the file where each begins.
        bounds: (n + 1,) int64, prefix sums of their values.
    """

    names: tuple[str, ...]
    dtype: np.dtype[Any]
    offsets: IntArray
    bounds: IntArray


def load_h5py(path: str) -> Any:
    """The package.

    Raises:
        MissingExtraError: it is not installed; names the file that needs it.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError(f"{path}: HDF5 needs h5py: pip install 'headrace[hdf5]'") from error
    return h5py


def check_order(order: str) -> None:
    """Raise ConfigError for an order that does not exist."""
    if order not in get_args(DatasetOrder):
        allowed = ", ".join(map(repr, get_args(DatasetOrder)))
        raise ConfigError(f"order={order!r} is unknown; the orders of datasets are {allowed}")


def read_layout(path: str, file_bytes: int, order: DatasetOrder) -> dict[str, Segments]:
    """The segments of each key, keys by name as HDF5 lists them. About 40 us a dataset.

    Raises:
        StoreError: not a whole HDF5 file, or not in this layout; says which group or dataset.
        MissingExtraError: h5py is not installed.
    """
    h5py = load_h5py(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            root = file.id
            keys = [name.decode() for name in root]
            found = {key: _segments(h5py, path, _child(h5py, path, root, key, "/"), key, order) for key in keys}
    except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: not a whole HDF5 file: {error}") from error
    if not found:
        raise StoreError(f"{path}: names no key; a store has a group for each, with datasets data_0, data_1, ...")
    for key, segments in found.items():
        num_bytes = np.diff(segments.bounds) * segments.dtype.itemsize
        outside = np.flatnonzero(segments.offsets > file_bytes - num_bytes)
        if len(outside):
            at = int(outside[0])
            raise StoreError(
                f"{path}: /{key}/{segments.names[at]}: {num_bytes[at]} bytes from byte {segments.offsets[at]} on do not"
                f" lie in the file of {file_bytes} bytes: it was cut short"
            )
    return found


def missing_numbers(segments: Segments) -> list[str]:
    """Names that the numbering of the datasets leaves out."""
    numbers = [name.removeprefix("data_") for name in segments.names]
    if not all(number.isdecimal() and number.isascii() for number in numbers):
        return []
    there = {int(number) for number in numbers}
    return [f"data_{number}" for number in range(len(there)) if number not in there]


def _child(h5py: Any, path: str, parent: Any, name: str, where: str) -> Any:
    """What a name means in its group. Links elsewhere are not followed: they could name any file."""
    if parent.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise StoreError(f"{path}: {where}{name} is a link; only what lies in the file itself is read")
    return h5py.h5o.open(parent, name.encode())


def _segments(h5py: Any, path: str, group: Any, key: str, order: DatasetOrder) -> Segments:
    if not isinstance(group, h5py.h5g.GroupID):
        raise StoreError(
            f"{path}: /{key} is a dataset; a key is a group, with its values in /{key}/data_0, data_1, ..."
        )
    names = sorted((name.decode() for name in group), key=None if order == "name" else natural_key)
    dtype: np.dtype[Any] | None = None
    offsets = np.zeros(len(names), np.int64)
    bounds = np.zeros(len(names) + 1, np.int64)
    for at, name in enumerate(names):
        where = f"{path}: /{key}/{name}"
        dataset = _child(h5py, path, group, name, f"/{key}/")
        if not isinstance(dataset, h5py.h5d.DatasetID):
            raise StoreError(f"{where} is a group; a key holds datasets only")
        if len(dataset.shape or ()) != 1:
            raise StoreError(f"{where} has the shape {dataset.shape}; a document is one-dimensional")
        if dtype is None:
            dtype = _dtype(where, dataset.dtype)
        if dataset.dtype != dtype:
            raise StoreError(
                f"{where} is of {dataset.dtype}, the datasets before it are of {dtype}; a key has one dtype"
            )
        (bounds[at + 1],) = dataset.shape
        offset = dataset.get_offset()
        if offset is None and bounds[at + 1]:
            raise StoreError(
                f"{where} is chunked, compressed, external or was never written; values are read where they lie one"
                " after another: h5repack --layout CONTI --filter NONE makes such a file"
            )
        offsets[at] = offset or 0
    np.cumsum(bounds, out=bounds)
    return Segments(tuple(names), np.dtype(np.int64) if dtype is None else dtype, offsets, bounds)


def _dtype(where: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.name not in DTYPE_NAMES or dtype.newbyteorder("<") != dtype:
        raise StoreError(f"{where} is of {dtype.str}; allowed are {', '.join(DTYPE_NAMES)}, little-endian")
    return dtype
