"""Which library may encode a run: the static check and the probe, for one candidate after another."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import msgspec

from headrace.errors import MissingExtraError
from headrace.prepare.backends.backend import Backend, SpecialPolicy, installed_version
from headrace.prepare.backends.comparison import OnCompared, compare
from headrace.prepare.backends.fastokens import FastokensBackend
from headrace.prepare.backends.gigatoken import GigatokenBackend
from headrace.prepare.backends.kept_probes import find_outcome, keep_outcome, probe_key
from headrace.prepare.backends.layout import Layout, UnsuitableError, is_plain, read_layout
from headrace.prepare.backends.probe import MAX_ADDED, probe_texts
from headrace.prepare.backends.quiet import silence
from headrace.prepare.backends.routed import RoutedBackend
from headrace.prepare.backends.special import SpecialFinder
from headrace.prepare.backends.tiktoken import TiktokenBackend
from headrace.prepare.backends.truth import TokenizersBackend
from headrace.prepare.forking import apart

TRUTH = "tokenizers"


CANDIDATES: dict[str, Callable[[bytes, SpecialPolicy], Backend]] = {
    "fastokens": FastokensBackend,
    "gigatoken": GigatokenBackend,
    "tiktoken": TiktokenBackend,
}
"""In the order in which they are tried: the fastest first, and of two as fast the one with the newer Unicode."""

BACKENDS = ("auto", TRUTH, *CANDIDATES)
"""What a user may ask for."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The library that encodes a run, and why not another."""

    name: str
    version: str
    reasons: dict[str, str]
    """Why each candidate that was tried before it, or asked for, is not used."""

    routes: str = ""
    """Why texts that hold an added token go to the truth all the same; "" where they do not."""


def choose_backend(
    tokenizer_json: bytes,
    *,
    wanted: str,
    special: SpecialPolicy,
    on_compared: OnCompared = lambda done, total: None,
) -> Choice:
    """Find the library that encodes a run.

    ``wanted`` is ``auto``, or the name of one: it is used where its proof holds, else the truth. The probe is about a
    second of work a candidate, half of which the truth needs; what came of it is kept, see `kept_probes`. While one is
    made, ``on_compared`` is called.

    Raises:
        ValueError: no such library is known.
        MissingExtraError: the wanted library is not installed.
    """
    if wanted not in BACKENDS:
        raise ValueError(f"unknown tokeniser library {wanted!r}; known are {', '.join(BACKENDS)}")
    reasons: dict[str, str] = {}
    truths: list[Backend] = []

    def truth() -> Backend:
        if not truths:
            truths.append(TokenizersBackend(tokenizer_json, special))
        return truths[0]

    names = [] if wanted == TRUTH else list(CANDIDATES) if wanted == "auto" else [wanted]
    for name in names:
        if importlib.util.find_spec(name) is None:
            if wanted == name:
                raise MissingExtraError(f"{name} is not installed: pip install 'headrace[fast]'")
            reasons[name] = "not installed"
            continue
        found = _try(name, tokenizer_json, special, truth, on_compared)
        if isinstance(found, Choice):
            return msgspec.structs.replace(found, reasons=reasons)
        reasons[name] = found
    return Choice(name=TRUTH, version=installed_version(TRUTH), reasons=reasons)


def load_backend(name: str, tokenizer_json: bytes, special: SpecialPolicy) -> Backend:
    """The library of this name, with the truth behind it for texts that it is not proved for.

    Raises:
        UnsuitableError: it does not have what the tokeniser asks for.
        ImportError: it is not installed.
    """
    truth: list[Backend] = []

    def loaded_truth() -> Backend:
        if not truth:
            truth.append(TokenizersBackend(tokenizer_json, special))
        return truth[0]

    return load_with(name, tokenizer_json, special, loaded_truth)


def load_with(name: str, tokenizer_json: bytes, special: SpecialPolicy, truth: Callable[[], Backend]) -> Backend:
    """As `load_backend`, with a truth that others use too."""
    if name == TRUTH:
        return truth()
    fast = CANDIDATES[name](tokenizer_json, special)
    layout = read_layout(tokenizer_json)
    if not routes(name, layout, special):
        return fast
    ordinary_only = special == "literal" and is_plain(layout, literal=True)
    return RoutedBackend(fast, truth, SpecialFinder(tokenizer_json, "ordinary" if ordinary_only else "added"))


def routes(name: str, layout: Layout, special: SpecialPolicy) -> str:
    """Why texts that hold an added token must not go to this library; "" where they may."""
    literal = special == "literal"
    known = [token for token in layout.added if not (literal and token.special)]
    if not is_plain(layout, literal=literal):
        return "some look beside them, or at normalised text, or overlap with others"
    if name == "tiktoken" and known:
        return "tiktoken does not look for the longest of them"
    if len(layout.added) > MAX_ADDED:
        return f"there are {len(layout.added):,} of them, more than are probed"
    return ""


def _try(
    name: str, tokenizer_json: bytes, special: SpecialPolicy, truth: Callable[[], Backend], on_compared: OnCompared
) -> Choice | str:
    """The choice of this library, or why it cannot be."""
    try:
        with silence():
            key = probe_key(tokenizer_json, special, name, CANDIDATES[name])
            difference = find_outcome(key)
            layout = read_layout(tokenizer_json)
            if difference is None:
                expected = truth()
                difference = apart(
                    lambda say: _probed(name, tokenizer_json, special, layout, expected, say),
                    lambda said: on_compared(*said),
                )
                keep_outcome(key, difference)
    except UnsuitableError as error:
        return f"unsuitable: {error}"
    except ImportError as error:
        return f"cannot be imported: {error}"
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        return f"fails: {type(error).__name__}: {error}"
    if difference:
        return f"differs on the probe: {difference}"
    return Choice(name=name, version=installed_version(name), reasons={}, routes=routes(name, layout, special))


def _probed(
    name: str,
    tokenizer_json: bytes,
    special: SpecialPolicy,
    layout: Layout,
    truth: Backend,
    say: Callable[[tuple[int, int]], None],
) -> str:
    """Where the library differs from the truth on the probe; "" nowhere."""
    fast = load_with(name, tokenizer_json, special, lambda: truth)
    texts = probe_texts(layout, is_byte_level=not layout.model.get("byte_fallback"))
    found = compare(fast, truth, texts, on_compared=lambda done, total: say((done, total)))
    return "" if found is None else found.message
