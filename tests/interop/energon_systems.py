"""Either system with task encoders of one source: only its import line differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import programs
from interop import energon_peer
from interop.energon_live import our_loader, their_loader

_NUMBERS = itertools.count()
_LINE = "from headrace.encoders import ("


def in_energon(module: ModuleType, folder: Path) -> ModuleType:
    """The same source with Energon's import line, loaded anew: what its decorators keep is not shared with others."""
    energon_peer.energon()
    source = Path(str(module.__file__)).read_text()
    assert source.count("headrace") == source.count(_LINE) == 1
    file = folder / f"encoders_of_energon_{next(_NUMBERS)}.py"
    file.write_text(source.replace(_LINE, "from megatron.energon import ("))
    found: ModuleType = energon_peer.quietly(programs.load, file)
    return found


class System:
    """Loaders with an encoder of `encoders_ported` by its name."""

    def __init__(self, name: Literal["ours", "theirs"], module: ModuleType, folder: Path) -> None:
        self.name = name
        self._module = module
        self._folder = folder

    def loader(self, encoder: str, *where: Any, **given: Any) -> Any:
        """As `our_loader` and `their_loader`; the encoder is one of another process, as it were."""
        module = self._module if self.name == "ours" else in_energon(self._module, self._folder)
        make: Any = our_loader if self.name == "ours" else their_loader
        return make(*where, task_encoder=getattr(module, encoder)(), **given)

    def given(self, loader: Any, number: int | None = None) -> list[dict[str, Any]]:
        """The fields of the next batches; all of an iteration without a number."""
        return list(islice(self.steps(iter(loader)), number))

    def steps(self, iterator: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """The same one after another."""
        while (batch := energon_peer.quietly(next, iterator, None)) is not None:
            yield fields(batch)


def fields(batch: Any) -> dict[str, Any]:
    """The fields of a batch that users see, and its restore key."""
    given = batch if isinstance(batch, Mapping) else {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    left_out = ("__subflavors__", "__sources__", "unit_numbers", "sample_positions")
    return {name: value for name, value in given.items() if name not in left_out}
