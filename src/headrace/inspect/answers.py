"""What the answers of this room share: `Answer`, the kinds and sizes of paths, which options fit, and progress.

Messages of errors write the names of arguments in backticks, with a value if there is one: ```num=5```. The command
line shows the options in their place: ``--num 5``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from headrace.errors import ConfigError, HeadraceError
from headrace.inspect.blocks import Block
from headrace.inspect.figures import duration, plural, problem_lines, writable
from headrace.io import AnyPath, path_at
from headrace.io.finding import is_found
from headrace.stores import Problem


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What functions of this room return: plain facts, which print nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as dicts, lists, texts and numbers. This is what ``--json`` prints."""
        found: dict[str, Any] = writable(msgspec.to_builtins(self))
        return found


class Shown(Protocol):
    """What is shown on a terminal and on pages."""

    def shown(self) -> Iterable[Block]:
        """Return what is shown, as blocks."""


class Report(Answer, frozen=True, kw_only=True):
    """An answer that is shown: on a terminal, and on pages."""

    def lines(self: Shown, **options: Any) -> list[str]:
        """Return the lines that the command prints, without colours; the options are those of `shown`."""
        from headrace.inspect.terminal import lines

        return list(lines(self.shown(**options)))


class Checked(Report, frozen=True, kw_only=True):
    """What a check found."""

    path: str
    ok: bool
    problems: tuple[Problem, ...]
    seconds: float | msgspec.UnsetType = msgspec.UNSET
    """How long the check took; unset for a dataset of a metadataset, and for kept arrays."""

    @property
    def all_problems(self) -> Sequence[Problem]:
        """The problems, with those of all that it consists of."""
        return self.problems

    def told(self, covered: str) -> str:
        """Return how many faults there are; or else what was read and found to be whole, which is ``covered``."""
        if found := self.all_problems:
            return f"{self.path}: {plural(len(found), 'fault')}"
        took = "" if self.seconds is msgspec.UNSET else f", {duration(self.seconds)}"
        return f"{self.path}: whole: {covered}{took}"

    def fault_lines(self) -> list[str]:
        """Return a line for each fault; of many that are alike, three are shown."""
        return problem_lines(self.all_problems)


def bytes_of(files: Iterable[str | AnyPath]) -> int:
    """Return the bytes of some files. Missing files do not count."""
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += path_at(file).stat().st_size
    return total


OnProgress = Callable[..., None]
"""Called now and then by long calls, as ``ProgressBar.update`` of the command line: with the phase, how much of the
total is done, and by keyword a ``text`` and amounts by unit, ``speeds``."""


def unseen(*told: object, **more: object) -> None:
    """Show no progress."""


PathKind = Literal["tokens", "samples", "metadataset", "kept"]


def kind_of(path: str) -> PathKind:
    """Return what is at a path, as far as its name and its files tell; ``tokens`` if it is none of the other kinds.

    A metadataset is a ``.yaml``; ``kept`` are the folders that ``headrace measure`` and plans of packs leave behind.

    Example:
        >>> from headrace.inspect import kind_of
        >>> kind_of("stores/web"), kind_of("shards"), kind_of("mix.yaml")
        ('tokens', 'samples', 'metadataset')
    """
    from headrace.stores.kept_arrays import KEPT_NAME
    from headrace.stores.opening import sample_layout

    if path.endswith(".yaml"):
        return "metadataset"
    if (path_at(path).absolute() / KEPT_NAME).is_file():
        return "kept"
    return "tokens" if sample_layout(path) is None else "samples"


class Fit(NamedTuple):
    """What an option is for: kinds of paths, and these in words, which follow ``is``."""

    kinds: tuple[PathKind, ...]
    words: str


FOR_TOKENS: Final = Fit(("tokens", "kept"), "for stores of tokens; this one holds samples")
FOR_SAMPLES: Final = Fit(("samples", "metadataset"), "for samples with named parts; this is a store of tokens")
FOR_DATASETS: Final = Fit(
    ("samples",),
    "only for Energon datasets, and this is none; a metadataset names these files for each of its datasets",
)
FOR_MIXES: Final = Fit(("metadataset",), "for metadatasets, which end in .yaml")
FOR_ORDERS: Final = Fit(("tokens", "kept", "metadataset"), "for stores of tokens and metadatasets")

Fits = Mapping[str, Fit]
"""Name of an option -> what it is for. Options that are not listed are for all kinds."""


def check_quarantine(path: str, kind: PathKind, *, decodes: bool) -> None:
    """Refuse to leave samples out of what has no list of them, or without knowing which are bad.

    Raises:
        ConfigError: it is a metadataset, or on a web server; or nothing is decoded.
    """
    if kind == "metadataset" or not decodes:
        raise ConfigError(f"{path}: `quarantine` needs `decode` and a single dataset")
    if path.lower().startswith(("http://", "https://")):
        raise ConfigError(f"{path}: nothing is written to a web server: leave out `quarantine`")


def check_fit(path: str, kind: PathKind, given: Container[str], fits: Fits) -> None:
    """Check that options which the user gave are for the kind of the path.

    Raises:
        ConfigError: an option is for paths of another kind.
    """
    for name, fit in fits.items():
        if name in given and kind not in fit.kinds:
            raise ConfigError(f"{path}: `{name}` is {fit.words}")


def problem_of(error: HeadraceError, path: str) -> Problem:
    """Return an error as a finding. Messages of stores begin with the path of the file; ``path`` is for the others.

    Raises:
        StoreAwayError: see `Problem.of`.
    """
    file, _, message = str(error).partition(": ")
    if message and is_found(file):
        return Problem.of(file, error)
    return Problem.of(path, error)
