"""AstrAI's windows over flat streams of several keys, for comparison with runs of AstrAI."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import index
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from headrace.datasets.dataset import Fields, FixedDataset, Sample
from headrace.datasets.loss_masks import unused_text, warn_unused
from headrace.datasets.origins import Origins, window_origins, windows_over
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.stores import Store

TrainType = Literal["seq", "sft", "dpo", "grpo"]


class _Field(NamedTuple):
    """One field of a window: the possible names of its key, its dtype (None: as on disk), and its shift in tokens."""

    keys: tuple[str, ...]
    dtype: type | None
    shift: int = 0


_IDS = ("sequence", "tokens", "text")
FIELDS: Final[dict[str, dict[str, _Field]]] = {
    "seq": {"input_ids": _Field(_IDS, np.int64), "target_ids": _Field(_IDS, np.int64, 1)},
    "sft": {
        "input_ids": _Field(_IDS, np.int64),
        "target_ids": _Field(_IDS, np.int64, 1),
        "loss_mask": _Field(("loss_mask",), np.bool_, 1),
        "position_ids": _Field(("position_ids",), np.int64),
    },
    "dpo": {
        "chosen": _Field(("chosen",), np.int64),
        "rejected": _Field(("rejected",), np.int64),
        "chosen_mask": _Field(("chosen_mask",), np.bool_),
        "rejected_mask": _Field(("rejected_mask",), np.bool_),
    },
    "grpo": {
        "prompts": _Field(("prompts",), np.int64),
        "responses": _Field(("responses",), np.int64),
        "masks": _Field(("masks",), np.bool_),
        "rewards": _Field(("rewards",), None),
    },
}
"""The fields of a window for each training type."""

COMPUTED: Final = "position_ids"
"""The one key that may be missing, since positions in documents can be computed."""


class StreamWindows(FixedDataset):
    """Windows at the same places of several keys, by AstrAI's arithmetic.

    Window i begins at token ``min(i * stride, N - 1 - window_size)`` of every key, where N is the number of tokens of
    the shortest key. Each field is (window_size,):

    - ``seq``: ``input_ids`` int64, and ``target_ids`` int64, the tokens one position later;
    - ``sft``: the same, ``loss_mask`` bool for the targets, and ``position_ids`` int64, computed within each document
      if the store has none;
    - ``dpo``: ``chosen``, ``rejected`` int64, ``chosen_mask``, ``rejected_mask`` bool;
    - ``grpo``: ``prompts``, ``responses`` int64, ``masks`` bool, ``rewards`` as stored.

    There are ``(N - 1 - window_size) // stride + 1`` windows, or none if N is not above the window size. Windows of
    ``dpo`` and ``grpo`` cut records anywhere and combine parts of different records. They serve only for comparison
    with AstrAI.

    Args:
        streams: for each key of the training type, a store whose main key it is.
        train_type: ``"seq"``, ``"sft"``, ``"dpo"`` or ``"grpo"``.
        window_size: tokens of a window.
        stride: tokens from the begin of one window to the next, by default ``window_size``.

    Raises:
        ConfigError: the type is unknown, a size is below 1, a key is missing, or a mask and its tokens differ in
            length. (AstrAI reads such a mask anyway, shifted against its tokens.)

    Example:
        >>> streams = {"sequence": headrace.open("stores/web")}
        >>> windows = headrace.compat.astrai.StreamWindows(streams, "seq", window_size=128)
        >>> bool((windows[0]["target_ids"][:-1] == windows[0]["input_ids"][1:]).all())
        True
    """

    def __init__(
        self, streams: Mapping[str, Store], train_type: TrainType, *, window_size: int, stride: int | None = None
    ) -> None:
        if train_type not in FIELDS:
            raise ConfigError(f"train_type is {train_type!r}; allowed are {', '.join(map(repr, FIELDS))}")
        self.train_type = train_type
        self.window_size = index(window_size)
        self.stride = self.window_size if stride is None else index(stride)
        if self.window_size < 1 or self.stride < 1:
            raise ConfigError(f"window_size and stride are at least 1, found {self.window_size} and {self.stride}")
        self._fields = FIELDS[train_type]
        self._streams: dict[str, Store] = {}
        for name, field in self._fields.items():
            key = next((key for key in field.keys if key in streams), None)
            if key is not None:
                self._streams[name] = streams[key]
            elif name != COMPUTED:
                raise ConfigError(
                    f"training type {train_type!r} needs the key {field.keys[0]!r}; the store has"
                    f" {', '.join(map(repr, streams))}"
                )
        self._check_masks()
        main = self.stores[0]
        # AstrAI's "seq" trains on every token, whatever else the store has.
        self._unused = "loss_mask" if train_type == "seq" and "loss_mask" in streams else None
        warn_unused(main, self._unused, "training type 'seq'")
        self.count_tokens = min(stream.num_tokens for stream in self._streams.values())
        slack = self.count_tokens - 1 - self.window_size
        self._num_samples = slack // self.stride + 1 if slack >= 0 else 0

    def _check_masks(self) -> None:
        parallel = [("input_ids", "loss_mask"), ("input_ids", COMPUTED), ("responses", "masks")]
        parallel += [("chosen", "chosen_mask"), ("rejected", "rejected_mask")]
        for tokens, marks in parallel:
            if tokens in self._streams and marks in self._streams:
                counts = [self._streams[name].num_tokens for name in (tokens, marks)]
                if counts[0] != counts[1]:
                    raise ConfigError(
                        f"{self._streams[tokens].path}: {counts[0]:,} tokens and {counts[1]:,} values of {marks!r}: the"
                        " mask is shifted against its tokens; prepare the store again"
                    )

    def __len__(self) -> int:
        return self._num_samples

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); each field is (window_size,)."""
        dtypes = {
            name: np.dtype(field.dtype) if field.dtype is not None else self._dtype(name)
            for name, field in self._fields.items()
        }
        return {name: ((self.window_size,), dtype) for name, dtype in dtypes.items()}

    def _dtype(self, name: str) -> np.dtype[Any]:
        stream = self._streams[name]
        return stream.dtypes[stream.keys[0]]

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores of the fields, one a stream."""
        return tuple(self._streams.values())

    @property
    def num_tokens_per_sample(self) -> float:
        """Always ``window_size``."""
        return float(self.window_size)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {
            "kind": "stream_windows",
            "train_type": self.train_type,
            "stores": {name: stream.fingerprint for name, stream in self._streams.items()},
            "num_tokens": self.count_tokens,
            "window_size": self.window_size,
            "stride": self.stride,
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: where each window begins. The last windows are moved back so that every token has a target."""
        return np.minimum(indices * self.stride, self.count_tokens - 1 - self.window_size)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read the windows that begin at ``addresses`` into ``rows`` of ``out``."""
        for name, field in self._fields.items():
            if name in self._streams:
                out[name][rows] = self._streams[name].gather(addresses + field.shift, self.window_size)
            else:
                out[name][rows] = self._positions(addresses)

    def _positions(self, begins: IntArray) -> IntArray:
        tokens = self._streams["input_ids"]
        places = begins[:, None] + np.arange(self.window_size)
        documents = tokens.find_documents(places.reshape(-1))
        return places - tokens.document_begins(documents).reshape(places.shape)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """The documents of the first key whose tokens are in each window."""
        return window_origins(self.stores[0], addresses, self.window_size)

    def holders(self, document: int) -> IntArray:
        """The windows that hold a token of a document of the first key."""
        size = self.window_size
        return windows_over(self.stores[0], document, stride=self.stride, length=size, phases=1, num_samples=len(self))

    def describe(self) -> str:
        """One line: the window size, the training type and the number of tokens."""
        return (
            f"windows of {self.window_size:,} tokens as AstrAI's {self.train_type}, over {self.count_tokens:,} tokens"
            f"{unused_text(self._unused)}"
        )
