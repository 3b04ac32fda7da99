"""What can be asked of any path: `describe`, `check` and `preview`. They find out what is there, and answer for it.

This is the only place that tells tokens from samples, metadatasets and kept arrays, and that refuses options which are
for a path of another kind. What answers for one kind is named here, and imported when such a path comes: decoding media
and tokenising load many modules, and most paths need neither.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Unpack

import msgspec

from headrace.config import check_keys
from headrace.errors import ConfigError
from headrace.inspect.answers import (
    FOR_DATASETS,
    FOR_MIXES,
    FOR_ORDERS,
    FOR_SAMPLES,
    FOR_TOKENS,
    Fits,
    OnProgress,
    check_fit,
    kind_of,
    unseen,
)
from headrace.plan.packing import Packing
from headrace.stores.token_layouts import Opening, OpenOptions

if TYPE_CHECKING:
    from headrace.inspect.description import Description, PackFigures
    from headrace.inspect.kept import KeptVerdict, MeasuredDescription
    from headrace.inspect.metadataset import MetadatasetDescription, MixVerdict
    from headrace.inspect.sample_checks import SampleVerdict
    from headrace.inspect.sample_description import SampleDescription
    from headrace.inspect.sample_preview import MixPreview, OpenPreview, SamplePreview
    from headrace.inspect.shown import Preview, PreviewOptions
    from headrace.inspect.store_checks import Verdict

    AnyDescription = Description | SampleDescription | MetadatasetDescription | MeasuredDescription | PackFigures
    AnyVerdict = Verdict | SampleVerdict | MixVerdict | KeptVerdict
    AnyPreview = Preview | SamplePreview | MixPreview

CHECKS: Final = {"samples": "sample_checks:check_samples", "metadataset": "metadataset:check_mix"}
"""The functions that check samples, by the kind of their path."""

OPENS: Final = {"samples": "sample_preview:open_samples", "metadataset": "sample_preview:open_mix"}
"""The functions that open samples for a preview, by the kind of their path."""


def _named(place: str) -> Any:
    """Import and return what ``"module:name"`` of this room stands for."""
    return resolve_name(f"{__package__}.{place}")


def describe(
    path: str | os.PathLike[str],
    *,
    packs: Sequence[int] = (),
    key: str | None = None,
    split_config: str | None = None,
    dataset_config: str | None = None,
    steps: int | None = None,
    global_batch_size: int | None = None,
    on_progress: OnProgress = unseen,
    **options: Unpack[OpenOptions],
) -> AnyDescription:
    """Return what the store, the dataset of samples or the metadataset at a path holds.

    Of a store of tokens this reads the index and not the tokens; of samples, the headers of a thousand of them.

    Args:
        path: a folder, a prefix with or without .bin or .idx, a meta.json, tar shards, or a metadataset (.yaml).
        packs: lengths of packs, in tokens; the answer is then what each packing strategy makes of the documents.
        key: with ``packs``, the key to pack, if the store has several; by default the first.
        split_config: the split file of an Energon dataset.
        dataset_config: the dataset file of an Energon dataset.
        steps: of a metadataset, count how often each source was seen after so many steps.
        global_batch_size: the number of samples per step.
        on_progress: called now and then while packs are made.
        options: of tokens, as for `headrace.open`: ``dialect``, ``documents``, ``dtype``, ...

    Raises:
        StoreError: there is no store, or it cannot be opened.
        ConfigError: an option is not for this path, or out of range.

    Example:
        >>> from headrace import inspect
        >>> found = inspect.describe("stores/web")
        >>> found.documents, found.tokens, found.keys[0].dtype
        (400, 102095, 'uint16')
        >>> [part.name for part in inspect.describe("shards").parts]
        ['jpg', 'txt']
        >>> [figures.packs for figures in inspect.describe("stores/web", packs=[512]).packs[0].strategies][:2]
        [266, 205]
    """
    path = os.fspath(path)
    kind = kind_of(path)
    of_samples = {"split_config": split_config, "dataset_config": dataset_config}
    of_mix = {"steps": steps, "global_batch_size": global_batch_size}
    asked = {**of_samples, **of_mix, "packs": packs or None, "key": key}
    check_fit(path, kind, [*Opening(**options).given, *_given(asked)], CHECK_FITS)
    if key is not None and not packs:
        raise ConfigError(f"`key={key}` needs `packs=N`: add it, or leave `key` out")
    found: AnyDescription | None = None
    if kind == "metadataset":
        found = _named("metadataset:describe_metadataset")(path, **of_mix)
    elif packs:
        found = _named("description:pack_figures")(path, packs, key=key, on_progress=on_progress, **options)
    elif kind == "samples":
        options_of_samples = _named("samples:SampleOptions")(**of_samples)
        found = _named("sample_description:describe_samples")(path, options_of_samples)
    elif kind == "kept":
        found = _named("kept:describe_facts")(path)
    return found or _named("description:describe_store")(path, **options)


class CheckOptions(OpenOptions, total=False):
    """What `check` checks, in addition to what it always does. Options for another kind of path are refused.

    Those of tokens are also the options of `headrace.open`: ``dialect``, ``documents``, ``dtype``, ...

    Attributes:
        tokenizer: of tokens, the tokeniser whose vocabulary ids are compared with; by default that of the manifest.
        packing: of tokens, also make packs of a store without faults, as a run would do it, and check them.
        key: with ``packing``, the key to pack, if the store has several; by default the first.
        plan_folder: with ``packing``, the folder of kept plans; by default the cache folder.
        decode: of samples, decode every picture, video, sound and text.
        workers: with ``decode``, the number of processes; by default one for each usable core.
        split_part: the part of an Energon dataset, or the split of a metadataset; by default all.
        split_config: the split file of an Energon dataset.
        dataset_config: the dataset file of an Energon dataset.
    """

    tokenizer: str | None
    packing: Packing | None
    key: str | None
    plan_folder: str | Path | None
    decode: bool
    workers: int | None
    split_part: str | None
    split_config: str | None
    dataset_config: str | None


_OF_TOKENS: Final = ("packs", "packing", "plan_folder", "tokenizer", "any_tokenizer", "ids")
PREVIEW_FITS: Final[Fits] = {
    **dict.fromkeys(("split_config", "dataset_config"), FOR_DATASETS),
    **dict.fromkeys(("decode", "quarantine", "workers", "split_part", "images"), FOR_SAMPLES),
    **dict.fromkeys(("order", "seed"), FOR_ORDERS),
    **dict.fromkeys(("steps", "global_batch_size"), FOR_MIXES),
    **dict.fromkeys((*_OF_TOKENS, *OpenOptions.__annotations__), FOR_TOKENS),
}
"""The kinds of paths that options of all questions are for; ``quarantine`` and ``images`` are those of commands."""

CHECK_FITS: Final[Fits] = {**PREVIEW_FITS, "key": FOR_TOKENS}
"""The same for `describe` and `check`, where a key is that of tokens; in a preview it may be that of a sample."""


def check(
    path: str | os.PathLike[str], *, on_progress: OnProgress = unseen, **options: Unpack[CheckOptions]
) -> AnyVerdict:
    """Read everything at a path, and return what is wrong with it.

    Of a store of tokens all bytes are read; of samples, all headers, and with ``decode`` all parts; of a metadataset,
    each of its datasets once.

    Args:
        path: the same as for `describe`.
        on_progress: called now and then with what is read.
        options: see `CheckOptions`.

    Raises:
        StoreError: there is no store.
        ConfigError: an option is not for this path, or out of range; the tokeniser cannot be read; or there is no such
            split part.
        WorkerError: a process that decodes has ended.

    Example:
        >>> import headrace
        >>> from headrace import inspect
        >>> inspect.check("stores/web").ok
        True
        >>> inspect.check("stores/web", packing=headrace.Packing(seq_len=512)).packs.packs
        205
        >>> inspect.check("shards", decode=True, workers=1).decoded.parts
        {'jpg': 20, 'txt': 20}
    """
    path = os.fspath(path)
    kind = kind_of(path)
    if kind == "kept":
        kept: KeptVerdict = _named("kept:check_kept")(path)
        return kept
    check_keys(options, CheckOptions.__annotations__)
    check_fit(path, kind, _given(options), CHECK_FITS)
    begin_s = time.monotonic()
    verdict: Verdict | SampleVerdict | MixVerdict
    if kind == "tokens":
        verdict = _check_tokens(path, options, on_progress)
    else:
        of_samples = _named("sample_checks:SampleCheck").of(options)
        verdict = _named(CHECKS[kind])(path, of_samples, on_progress=on_progress)
    return msgspec.structs.replace(verdict, seconds=round(time.monotonic() - begin_s, 3))


def _given(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that ask for something."""
    return [name for name, value in options.items() if value is not None and value is not False]


def _check_tokens(path: str, options: CheckOptions, on_progress: OnProgress) -> Verdict:
    packing, key, folder = options.get("packing"), options.get("key"), options.get("plan_folder")
    if packing is None and (key is not None or folder is not None):
        raise ConfigError("the options of packs need the length of a pack: add `packing=N`")
    of_tokens = {name: value for name, value in options.items() if name in OpenOptions.__annotations__}
    verdict: Verdict = _named("store_checks:check_store")(
        path, tokenizer=options.get("tokenizer"), on_progress=on_progress, **of_tokens
    )
    if packing is None:
        return verdict
    if not verdict.ok:
        return msgspec.structs.replace(verdict, packs=None)
    place = None if folder is None else Path(folder)
    packs, faults = _named("store_checks:check_packs")(
        path, packing, key=key, plan_folder=place, on_progress=on_progress, **of_tokens
    )
    return msgspec.structs.replace(verdict, ok=not faults, problems=tuple(faults), packs=packs)


def preview(path: str | os.PathLike[str], **options: Unpack[PreviewOptions]) -> AnyPreview:
    """Return some documents, packs or samples at a path, in readable form.

    Of tokens, the answer has the text, role and loss mask of each token; of samples, the texts and facts of each part.

    Args:
        path: the same as for `describe`.
        options: see `PreviewOptions`.

    Raises:
        StoreError: there is no store, or its tokeniser is missing or has changed.
        ConfigError: there is no such sample or key, an option is not for this path, or options contradict each other.
        InputError: a sample is malformed.

    Example:
        >>> from headrace import inspect
        >>> found = inspect.preview("stores/web", samples=[0, 7], limit=5)
        >>> [sample.number for sample in found.samples], found.samples[0].sequences[0].num_shown
        ([0, 7], 5)
        >>> (sample,) = inspect.preview("shards", key="003").samples
        >>> sample.parts[1].text, sample.fields["image"]
        ('a picture of word3', 'the image in jpg')
    """
    with open_preview(path, **options) as found:
        return found.read() if hasattr(found, "read") else found


@contextlib.contextmanager
def open_preview(path: str | os.PathLike[str], **options: Unpack[PreviewOptions]) -> Iterator[Preview | OpenPreview]:
    """Open what `preview` shows. Of samples it is read one by one, with bytes and pictures, while it is iterated over.

    Raises:
        HeadraceError: the same as for `preview`.

    Example:
        >>> from headrace import inspect
        >>> with inspect.open_preview("shards", num=2, pictures=True) as found:
        ...     for sample in found:
        ...         print(sample.shown.key, sample.pictures["jpg"].size)
        000 (32, 24)
        001 (32, 25)
    """
    path = os.fspath(path)
    kind = kind_of(path)
    check_keys(options, _named("shown:PreviewOptions").__annotations__)
    check_fit(path, kind, _given(options), PREVIEW_FITS)
    if kind in ("tokens", "kept"):
        if options.get("any_tokenizer") and options.get("tokenizer") is None:
            raise ConfigError("`any_tokenizer` needs `tokenizer=PATH`: name the other tokeniser")
        yield _named("token_preview:preview_tokens")(path, options)
        return
    with _named(OPENS[kind])(path, options) as found:
        yield found
