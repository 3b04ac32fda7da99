"""Who wrote a pair of ``.bin`` and ``.idx``: projects differ in what a dtype code means, and in what they leave out.

code                      1..5, 8   6         7         9, 10
megatron                  same      float64   float32   -         Megatron-Core, Megatron-LM since 2023-06
deepspeed                 same      float64   float64   -         Megatron-DeepSpeed, older Megatron-LM
neox                      same      float32   float64   -         GPT-NeoX, Aleph Alpha's copy of it
fairseq                   same      float64   float64   uint32, uint64   no documents in its index
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from headrace.errors import ConfigError

Dialect = Literal["megatron", "deepspeed", "neox", "fairseq"]
Documents = Literal["indices", "sequences"]

DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)
FLOAT_CODES: Final = (6, 7)

_SAME: Final = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_OWN: Final[dict[Dialect, dict[int, str]]] = {
    "megatron": {6: "<f8", 7: "<f4"},
    "deepspeed": {6: "<f8", 7: "<f8"},
    "neox": {6: "<f4", 7: "<f8"},
    "fairseq": {6: "<f8", 7: "<f8", 9: "<u4", 10: "<u8"},
}
_CODES: Final[dict[Dialect, dict[int, np.dtype[Any]]]] = {
    dialect: {code: np.dtype(name) for code, name in sorted({**_SAME, **own}.items())} for dialect, own in _OWN.items()
}


class IndexedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a pair of ``.bin`` and ``.idx`` is to be understood, where its bytes do not say.

    Attributes:
        dialect: who wrote it; None takes what the bytes tell, and asks where they do not.
        documents: ``"indices"`` are what the index says; with ``"sequences"`` each sequence is a document, whatever
            the index says, so that it also opens where a tool lost them.
    """

    dialect: Dialect | None = None
    documents: Documents = "indices"

    def __post_init__(self) -> None:
        if self.dialect is not None and self.dialect not in DIALECTS:
            raise ConfigError(f"dialect={self.dialect!r} is unknown; the dialects are {', '.join(map(repr, DIALECTS))}")
        if self.documents not in get_args(Documents):
            allowed = " and ".join(map(repr, get_args(Documents)))
            raise ConfigError(f"documents={self.documents!r} is unknown; allowed are {allowed}")


AS_FOUND: Final = IndexedOptions()


def codes(dialect: Dialect) -> dict[int, np.dtype[Any]]:
    """The dtypes of a dialect by their codes."""
    return dict(_CODES[dialect])


def code_of(dtype: DTypeLike, dialect: Dialect) -> int:
    """The code that a dialect writes for a dtype.

    Raises:
        ConfigError: it is no dtype, or the readers of the dialect do not know it; says which ones they know.
    """
    try:
        wanted = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype={dtype!r} is no dtype: {error}") from error
    for code, known in _CODES[dialect].items():
        if wanted == known:
            return code
    known_names = ", ".join(dict.fromkeys(known.name for known in _CODES[dialect].values()))
    where = " (fairseq's readers know it: dialect='fairseq')" if wanted in _CODES["fairseq"].values() else ""
    raise ConfigError(
        f"dtype {wanted.name} is unknown to readers of the {dialect} dialect{where}; it has {known_names}"
    )
