"""Previews of token stores: the documents or packs that a user wants to see, as a `Preview`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from headrace.copying.plan import is_copy
from headrace.datasets.packed_sequences import StoreLengths, make_plan
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect.description import find_manifest
from headrace.inspect.document_origins import find_origins, place_in_input
from headrace.inspect.documents import RecordKeys, ShownKeys, choose, figures_of, main_store
from headrace.inspect.figures import count, plural
from headrace.inspect.shown import Preview, PreviewOptions, ShownSample, ShownSequence
from headrace.inspect.token_texts import FoundTokenizer, IdTexts, find_texts
from headrace.plan.packing import PackPlan
from headrace.stores import Manifest
from headrace.stores import open_tokens as open_store

MOST_LEFT_OUT = 20
"""The most bad records that are listed; any others are counted."""


def preview_tokens(name: str, options: PreviewOptions) -> Preview:
    """Return some samples of a store, with the text, mask, role and position of each token.

    Raises:
        StoreError: there is no store, or its tokeniser is missing.
        ConfigError: there is no such sample or key, the tokeniser is another one, or options contradict each other.
    """
    packing, dialect = options.get("packing"), options.get("dialect")
    num, max_tokens = options.get("num", 3), options.get("max_tokens", 2048)
    with open_store(name, dialect=dialect) as store:
        keys = ShownKeys.of(store, options.get("key"))
        if packing is not None and keys.kind not in ("seq", "sft"):
            raise ConfigError(
                f"{name}: records of type {keys.kind} cannot be packed; choose one key, such as `key={keys.main}`, or"
                " leave `packing` out"
            )
        manifest = find_manifest(name)
        found = (
            FoundTokenizer(IdTexts(), None)
            if options.get("ids")
            else find_texts(
                manifest.tokenizer if manifest is not None else None,
                given=options.get("tokenizer"),
                is_any=options.get("any_tokenizer", False),
                path=name,
            )
        )
        main = main_store(store, keys, dialect)
        plan = None if packing is None else make_plan(main, StoreLengths(main), packing, None)
        if max_tokens < 1 or num < 1:
            raise ConfigError(f"num and max_tokens must be at least 1, found {num} and {max_tokens}")
        chosen, chosen_by = choose(store, keys, plan, num, options)
        reader = RecordKeys(store, keys, found.texts)
        samples = (
            [reader.document(number, max_tokens) for number in chosen]
            if plan is None
            else _packs(reader, plan, chosen, max_tokens)
        )
        return Preview(
            path=name,
            format=store.format,
            kind=keys.kind,
            keys=keys.names,
            num_documents=store.num_documents,
            tokenizer=found.source,
            note=found.note,
            seq_len=None if packing is None else packing.seq_len,
            num_samples=store.num_documents if plan is None else len(plan),
            chosen_by=chosen_by,
            samples=tuple(_placed(name, manifest, samples)),
            left_out=() if manifest is None else _left_out(manifest),
            figures=figures_of(store, keys, plan, dialect=dialect) if options.get("with_figures") else None,
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
