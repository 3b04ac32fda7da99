"""AstrAI's windows over flat streams of several keys, for runs that must be compared with its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import index
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from headrace.datasets.dataset import Dataset, Fields, Origins, Sample, window_origins, windows_over
from headrace.datasets.loss_masks import unused_text, warn_unused
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.stores import Store

TrainType = Literal["seq", "sft", "dpo", "grpo"]


class _Field(NamedTuple):
    """One field of a window: the key it is of, by its names, its dtype, None for that on disk, and its first token."""

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
"""For each training type the fields of a window."""

COMPUTED: Final = "position_ids"
"""The one key that may be missing: the places of tokens in their documents are known without it."""


class StreamWindows(Dataset):
    """Window i begins at token ``min(i * stride, N - 1 - window_size)`` of every key, N the shortest one's tokens.

    Each field is (window_size,):

    - ``seq``: ``input_ids``, and ``target_ids``, the tokens one later, int64;
    - ``sft``: the same, ``loss_mask`` bool, of the target, and ``position_ids`` int64, counted in each document where
      the store has none;
    - ``dpo``: ``chosen``, ``rejected`` int64, ``chosen_mask``, ``rejected_mask`` bool;
    - ``grpo``: ``prompts``, ``responses`` int64, ``masks`` bool, ``rewards`` as stored.

    There are ``(N - 1 - window_size) // stride + 1`` windows, none where N is not above the window. Windows of ``dpo``
    and ``grpo`` cut records anywhere, and put parts of different ones beside each other: for comparison with AstrAI.

    Args:
        streams: for each key of the training type a store whose main key it is.
        train_type: ``"seq"``, ``"sft"``, ``"dpo"`` or ``"grpo"``.
        window_size: tokens of a window.
        stride: from one window to the next, by default ``window_size``.

    Raises:
        ConfigError: an unknown type, sizes below 1, a key that is missing, or a mask that is not as long as its tokens,
            which AstrAI reads all the same, shifted.
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
        """Name -> (shape, dtype)."""
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
        """One a stream."""
        return tuple(self._streams.values())

    @property
    def num_tokens_per_sample(self) -> float:
        """The window."""
        return float(self.window_size)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {
            "kind": "stream_windows",
            "train_type": self.train_type,
            "stores": {name: stream.fingerprint for name, stream in self._streams.items()},
            "num_tokens": self.count_tokens,
            "window_size": self.window_size,
            "stride": self.stride,
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: where each window begins; the last ones are moved back so that a target follows every token."""
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
        """The documents of the first key that its tokens are of."""
        return window_origins(self.stores[0], addresses, self.window_size)

    def holders(self, document: int) -> IntArray:
        """The windows over a document of the first key."""
        size = self.window_size
        return windows_over(self.stores[0], document, stride=self.stride, length=size, phases=1, num_samples=len(self))

    def describe(self) -> str:
        """One line."""
        return (
            f"windows of {self.window_size:,} tokens as AstrAI's {self.train_type}, over {self.count_tokens:,} tokens"
            f"{unused_text(self._unused)}"
        )
