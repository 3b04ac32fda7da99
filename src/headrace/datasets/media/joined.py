"""`JoinedMediaDataset`: samples of several datasets side by side, each row of a join index made into one sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from headrace.datasets.dataset import SampleWatch
from headrace.datasets.media.dataset import DEFAULT_DECODER, MediaDataset
from headrace.datasets.media.face import SampleDataset
from headrace.datasets.media.file_stores import contents_of
from headrace.errors import ConfigError, SampleError
from headrace.plan import IntArray
from headrace.plan.recipe import recorded_name
from headrace.samples.media import Sample, SampleDecoder
from headrace.samples.media.sample import BASE_FIELDS
from headrace.stores import JoinedStore, PartPlace, RawSample
from headrace.stores.store import Extents

Joiner = Callable[..., Any]


class JoinedMediaDataset(SampleDataset):
    """Sample i is row i of a join: the samples of all columns, made into one by the joiner.

    Its ``__restore_key__`` is ``("JoinedWebdatasetFactory", "Webdataset", i)``, as with Energon.

    Args:
        store: an open join.
        joiner: a sample type, whose ``from_joined`` is called, or a function. It gets one sample for each column, in
            the order of the columns, or by name if the columns have names; None where a column has no match.
        columns: a dataset for each column's store, which says how its samples are made; by default as its
            ``dataset.yaml`` says.
        decoder: decoder for columns that are not given.
        trust_code: run code that the ``dataset.yaml`` of a column names.

    Raises:
        ConfigError: not an open join; only some columns have names; a sample type as joiner of crude samples, which
            have no fields; datasets of other stores; otherwise as `MediaDataset.of`.

    Example:
        >>> from pathlib import Path
        >>> from headrace.stores.energon import EnergonStore, JoinColumn, JoinedStore, write_join
        >>> columns = [JoinColumn(store=EnergonStore("shards"), name=name) for name in ("one", "other")]
        >>> join = write_join(Path("joined"), columns)
        >>> def pair(one, other):
        ...     return {"__key__": one["__key__"], "captions": [one["txt"], other["txt"]]}
        >>> parts = [headrace.MediaDataset(column.store) for column in columns]
        >>> dataset = headrace.datasets.JoinedMediaDataset(JoinedStore(columns, "joined"), pair, columns=parts)
        >>> dataset[0]["captions"][0] == dataset[0]["captions"][1]
        True
    """

    def __init__(
        self,
        store: JoinedStore,
        joiner: type[Sample] | Joiner,
        *,
        columns: Sequence[MediaDataset] | None = None,
        decoder: SampleDecoder | None = DEFAULT_DECODER,
        trust_code: bool = False,
    ) -> None:
        if not isinstance(store, JoinedStore):
            raise ConfigError(f"store is {store!r}; expected a JoinedStore")
        if not len(store):
            raise ConfigError(f"{store.path} has no rows")
        if not callable(joiner):
            raise ConfigError(f"joiner is {joiner!r}; expected a sample type or a function")
        own = [one.store for one in store.columns]
        if columns is None:
            columns = [MediaDataset.of(one, decoder=decoder, trust_code=trust_code) for one in own]
        if [id(part.store) for part in columns] != [id(one) for one in own]:
            raise ConfigError(
                f"columns: expected a dataset for each of the {len(own)} stores of the join, in its order"
            )
        self.store: JoinedStore = store
        self.joiner = joiner
        self.parts = tuple(columns)
        self._is_type = isinstance(joiner, type) and issubclass(joiner, Sample)
        self._names = [one.name for one in store.columns if one.name is not None]
        if 0 < len(self._names) < len(own):
            raise ConfigError(
                f"only the columns {', '.join(self._names)} of the join have names; name all of them, or none"
            )
        if any(part.errors is not None for part in self.parts):
            raise ConfigError("errors of a column would not be used: pass errors to the EncodedDataset of the join")
        if self._is_type:
            self._check_fields()

    def _check_fields(self) -> None:
        """Raise ConfigError if a part has crude samples, which have no fields that a sample type could join."""
        crude = [part.store.path for part in self.parts if part.mapper.is_crude and part.cooker is None]
        if crude:
            raise ConfigError(
                f"the samples of {', '.join(crude)} are crude, and have no fields that {recorded_name(self.joiner)}"
                " could join; pass a function as joiner, or give the dataset a sample type"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of the sample type that joins; if a function joins, only those that all samples have."""
        kind: Any = self.joiner
        return tuple(field.name for field in dataclasses.fields(kind)) if self._is_type else BASE_FIELDS

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The joiner, unless it is a type, and the cookers of the columns."""
        joiner = [] if isinstance(self.joiner, type) else [self.joiner]
        return [*joiner, *(function for part in self.parts for function in part.functions)]

    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Read rows; see `SampleDataset.makers`. Errors of a joiner get a note that names the row."""
        rows = self.store.read_joined(addresses, [part.mapper.parts for part in self.parts])
        return [partial(self._joined, row, index) for row, index in zip(rows, addresses.tolist(), strict=True)]

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return a range for each sample of each column, with all of its parts, also those that are not read."""
        return self.store.column_extents(addresses)

    def address_of(self, restore_key: Any) -> int | None:
        """Return the number of the row with a restore key, see `SampleDataset.address_of`."""
        match restore_key:
            case ("JoinedWebdatasetFactory", "Webdataset", int(index)) if 0 <= index < len(self):
                return index
        return None

    def _joined(self, row: Sequence[RawSample | None], index: int) -> Any:
        samples = [
            None if raw is None else part.made(raw, index, partial(self._places, index, name))
            for raw, part, name in zip(row, self.parts, self.store.names, strict=True)
        ]
        joiner: Any = self.joiner.from_joined if self._is_type else self.joiner  # type: ignore[union-attr]
        try:
            joined = joiner(**dict(zip(self._names, samples, strict=True))) if self._names else joiner(*samples)
            if joined is None:
                raise SampleError(None, f"{recorded_name(self.joiner)} returned None, and not a sample")
        except Exception as error:
            error.add_note(f"while joining row {index:,} of {self.store.path}")
            raise
        restore_key = ("JoinedWebdatasetFactory", "Webdataset", index)
        if isinstance(joined, dict):
            joined["__restore_key__"] = restore_key
        else:
            joined.__restore_key__ = restore_key
        return joined

    def _places(self, index: int, name: str) -> dict[str, PartPlace]:
        found = self.store.places(index)
        return {part.removeprefix(f"{name}."): place for part, place in found.items() if part.startswith(f"{name}.")}

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the samples; the joiner is recorded by its name."""
        return {
            "kind": type(self).__name__,
            "version": 1,
            "store": self.store.layout_fingerprint,
            "joiner": recorded_name(self.joiner),
            "names": self._names,
            "columns": [part.recipe for part in self.parts],
            **contents_of(self.store),
        }

    def describe(self) -> str:
        """Describe columns and joiner in one line."""
        return f"{' + '.join(part.store.path for part in self.parts)}, joined by {recorded_name(self.joiner)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), columns=self.parts), (self.store, self.joiner)
