"""Previews of token stores: the documents or packs that a user wants to see, as a `Preview`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.copying.plan import is_copy
from headrace.datasets.pack_plans import StoreLengths, make_plan
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect.description import find_manifest
from headrace.inspect.documents import By, RecordKeys, ShownKeys, choose, figures_of
from headrace.inspect.figures import count, plural
from headrace.inspect.origins import find_origins, place_in_input
from headrace.inspect.shown import Preview, ShownSample, ShownSequence
from headrace.inspect.token_texts import FoundTokenizer, IdTexts, find_texts
from headrace.plan.packing import Packing, PackPlan
from headrace.stores import Dialect, Manifest, Store
from headrace.stores import open_tokens as open_store

MOST_LEFT_OUT = 20
"""The most bad records that are listed; any others are counted."""


class PreviewOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to show of a token store, and how. Pass it to `preview_store`.

    At most one of ``samples``, ``seed`` and ``by`` may be given; without any, the first ``num`` samples are shown.

    Attributes:
        samples: the numbers of documents, or of packs.
        num: how many samples are shown if they are not named.
        seed: show ``num`` random samples, the same for the same seed and store.
        by: ``"longest"`` or ``"least_trained"``: show the ``num`` documents that are the longest, or of which the
            smallest share is trained.
        max_tokens: the most tokens that are shown of each sequence, or of a whole pack.
        packing: show packs in place of documents.
        key: show only this key, with its loss mask, in place of all keys that belong together.
        tokenizer: a ``tokenizer.json`` or its folder; by default the one that the manifest names.
        any_tokenizer: allow a tokeniser other than the one that the store was made with.
        ids: show ids in place of texts.
        dialect: how to read pairs of .bin and .idx.
        with_figures: count lengths and trained tokens of the whole store, which reads its index and its masks.

    Example:
        >>> from headrace.inspect import PreviewOptions, preview_store
        >>> preview = preview_store("stores/web", PreviewOptions(samples=(0, 7), max_tokens=5))
        >>> [sample.number for sample in preview.samples]
        [0, 7]
        >>> preview.samples[0].sequences[0].num_shown
        5
    """

    samples: tuple[int, ...] | None = None
    num: int = 3
    seed: int | None = None
    by: By | None = None
    max_tokens: int = 2048
    packing: Packing | None = None
    key: str | None = None
    tokenizer: str | None = None
    any_tokenizer: bool = False
    ids: bool = False
    dialect: Dialect | None = None
    with_figures: bool = False


def preview_store(path: str | os.PathLike[str], options: PreviewOptions | None = None) -> Preview:
    """Return some samples of a store, with the text, mask, role and position of each token.

    Raises:
        StoreError: there is no store, or its tokeniser is missing.
        ConfigError: there is no such sample or key, the tokeniser is another one, or options contradict each other.
    """
    options = options or PreviewOptions()
    name = os.fspath(path)
    with open_store(name, dialect=options.dialect) as store:
        keys = ShownKeys.of(store, options.key)
        if options.packing is not None and keys.kind not in ("seq", "sft"):
            raise ConfigError(
                f"{name}: records of type {keys.kind} cannot be packed; choose one key, such as --key "
                f"{keys.main}, or leave --pack out"
            )
        manifest = find_manifest(name)
        found = (
            FoundTokenizer(IdTexts(), None)
            if options.ids
            else find_texts(
                manifest.tokenizer if manifest is not None else None,
                given=options.tokenizer,
                is_any=options.any_tokenizer,
                path=name,
            )
        )
        plan = None if options.packing is None else _plan(store, keys, options.packing, options)
        if options.max_tokens < 1 or options.num < 1:
            raise ConfigError(f"num and max_tokens must be at least 1, found {options.num} and {options.max_tokens}")
        chosen, chosen_by = choose(
            store,
            keys,
            plan,
            named=options.samples,
            num=options.num,
            seed=options.seed,
            by=options.by,
            dialect=options.dialect,
        )
        reader = RecordKeys(store, keys, found.texts)
        samples = (
            [reader.document(number, options.max_tokens) for number in chosen]
            if plan is None
            else _packs(reader, plan, chosen, options.max_tokens)
        )
        return Preview(
            path=name,
            format=store.format,
            kind=keys.kind,
            keys=keys.names,
            num_documents=store.num_documents,
            tokenizer=found.source,
            note=found.note,
            seq_len=None if options.packing is None else options.packing.seq_len,
            num_samples=store.num_documents if plan is None else len(plan),
            chosen_by=chosen_by,
            samples=tuple(_placed(name, manifest, samples)),
            left_out=() if manifest is None else _left_out(manifest),
            figures=figures_of(store, keys, plan, dialect=options.dialect) if options.with_figures else None,
        )


def _placed(path: str, manifest: Manifest | None, samples: list[ShownSample]) -> list[ShownSample]:
    """Add to each sequence the file and line that it comes from, if the store keeps them."""
    if manifest is None or not (manifest.provenance or is_copy(manifest) or manifest.options.get("domain")):
        return samples
    documents = sorted({sequence.document for sample in samples for sequence in sample.sequences})
    try:
        origins = find_origins(path, documents, with_texts=False) if documents else []
    except HeadraceError as error:
        sources = dict.fromkeys(documents, f"not known: {error}")
    else:
        sources = {
            one: f"{origin.input}, {place_in_input(origin)}" for one, origin in zip(documents, origins, strict=True)
        }
    return [
        msgspec.structs.replace(
            sample,
            sequences=tuple(
                msgspec.structs.replace(sequence, source=sources[sequence.document]) for sequence in sample.sequences
            ),
        )
        for sample in samples
    ]


def _left_out(manifest: Manifest) -> tuple[str, ...]:
    """Return lines about what the run that made the store left out: by reason, then bad records by place."""
    lines = [
        f"{plural(number, 'document')} dropped: {reason}"
        for reason, number in sorted(manifest.ledger.documents.dropped.items())
        if number
    ]
    shown = manifest.errors[:MOST_LEFT_OUT]
    lines += [f"bad record: {entry.file}, {entry.unit} {count(entry.line)}: {entry.message}" for entry in shown]
    more = len(manifest.errors) - len(shown)
    return (*lines, *([f"{plural(more, 'more bad record')}: headrace.json lists them"] if more else []))


def _plan(store: Store, keys: ShownKeys, packing: Packing, options: PreviewOptions) -> PackPlan:
    main = store if keys.main == store.keys[0] else open_store(store.path, key=keys.main, dialect=options.dialect)
    return make_plan(main, StoreLengths(main), packing, None)


def _packs(reader: RecordKeys, plan: PackPlan, packs: Sequence[int], max_tokens: int) -> list[ShownSample]:
    items = plan.items(np.array(packs, np.int64))
    found = []
    for row, pack in enumerate(packs):
        left = max_tokens
        pieces: list[ShownSequence] = []
        for item in range(int(items.offsets[row]), int(items.offsets[row + 1])):
            begin, length = int(items.begins[item]), int(items.lengths[item])
            piece = reader.piece(int(items.documents[item]), begin, begin + length, left)
            left -= piece.num_shown
            pieces.append(piece)
        used = sum(piece.num_tokens for piece in pieces)
        found.append(ShownSample(number=pack, sequences=tuple(pieces), num_pads=plan.packing.seq_len - used))
    return found
