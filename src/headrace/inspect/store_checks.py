"""The checks of a token store and of its packs, for ``headrace check``.

`Tiling` checks packs: in any order, the pieces of each document must add up to all its tokens, each exactly once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets import PackedSequenceDataset, Sample
from headrace.datasets.packed_sequences import StoreLengths, plan_name
from headrace.errors import StoreError
from headrace.inspect.answers import Checked, OnProgress, bytes_of, problem_of
from headrace.inspect.blocks import Block
from headrace.inspect.description import find_manifest, open_key, shards_of
from headrace.inspect.figures import count, plural, size
from headrace.io import FileSum, cache_folder, path_at
from headrace.plan import IntArray, KeyArray, derive_array
from headrace.plan.packed_check import check_packed
from headrace.plan.packing import CHUNK, Packing, PackingLedger, PackItems, PackPlanMeta, plan_packs
from headrace.plan.segments import IGNORED_LABEL
from headrace.preparing.backends.tokenizer import load_tokenizer
from headrace.stores import MANIFEST_NAME, Manifest, Problem, Store, check_arrays, find_arrays, open_keys
from headrace.stores.checking import Faults
from headrace.stores.kept_arrays import KEPT_NAME
from headrace.stores.token_layouts import OpenOptions
from headrace.stores.written import META_NAME


class PackVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of packs covered."""

    key: str
    packing: Packing
    kept_plan: str | None
    """Where a kept plan was found, which is checked too; None if there was none."""

    packs: int
    """The number of packs; zero if the kept plan is damaged, since then nothing else is checked."""

    ledger: PackingLedger | None


class Verdict(Checked, frozen=True, kw_only=True):
    """What a check of tokens found, and how much it read. Counts are zero if the store cannot be opened."""

    files: int = 0
    bytes: int = 0
    documents: int = 0
    tokens: int = 0
    """The number of tokens of all keys together."""

    hashed: bool = False
    """Whether a manifest has hashes of all bytes; without one, only the structure can be checked."""

    vocab_size: int | None
    """Ids were checked to be below this number; None if they were not checked."""

    packs: PackVerdict | msgspec.UnsetType | None = msgspec.UNSET
    """What the check of packs covered; None if the store has faults, and unset if no packs were asked for."""

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        packs = self.packs
        if packs is None:
            yield f"{self.path}: its packs were not checked, because the store has faults"
        elif packs and packs.ledger is not None and not self.problems:
            ledger, packing = packs.ledger, packs.packing
            where = "" if packs.kept_plan is None else f", by the plan in {packs.kept_plan}"
            yield (
                f"{self.path}: {plural(packs.packs, 'pack')} of {plural(packing.seq_len, 'token')} right "
                f"({packing.strategy}): fill {ledger.fill:.3%}, {count(ledger.split_documents)} split, "
                f"{ledger.lost_share:.2%} of the tokens lost{where}"
            )
        hashed = "read (no headrace.json has hashes of the bytes: only the structure was checked)"
        ids = f", ids below {count(self.vocab_size)}" if self.vocab_size is not None else ""
        yield self.told(
            f"{plural(self.files, 'file')}, {size(self.bytes)} {'read and hashed' if self.hashed else hashed}, "
            f"{plural(self.documents, 'document')}, {plural(self.tokens, 'token')}{ids}"
        )


def check_store(
    path: str, *, tokenizer: str | None, on_progress: OnProgress, **options: Unpack[OpenOptions]
) -> Verdict:
    """Read everything at a path, and collect what is wrong.

    Args:
        path: the same as for `headrace.open`.
        tokenizer: the tokeniser whose vocabulary ids are compared with; by default the manifest's.
        on_progress: called before each shard.
        options: as for `headrace.open`.

    Raises:
        StoreError: the path holds no store.
        StoreAwayError: the object store gives no answer.
        ConfigError: the tokeniser cannot be read.
    """
    vocab_size = load_tokenizer(tokenizer).known.vocab_size if tokenizer is not None else None
    try:
        stores = open_keys(path, **options)
        manifest = find_manifest(path)
    except StoreError as error:
        problem = problem_of(error, path)
        if not _is_there(path):
            raise
        return Verdict(path=path, ok=False, problems=(problem,), vocab_size=vocab_size)
    if vocab_size is None and manifest is not None and manifest.tokenizer is not None:
        vocab_size = manifest.tokenizer.vocab_size
    with contextlib.ExitStack() as stack:
        for store in stores.values():
            stack.enter_context(store)
        return _check_opened(path, stores, manifest, vocab_size, on_progress)


def _check_opened(
    path: str, stores: dict[str, Store], manifest: Manifest | None, vocab_size: int | None, on_progress: OnProgress
) -> Verdict:
    """Check all shards of all keys, and the files beside them if the manifest is in the same folder."""
    # A shard of the keyed format checks all its keys; one of the indexed format has only one key. Shards are told
    # apart by their files, since indexed keys of one shard each all have the folder as their path.
    shards = {frozenset(shard.files): shard for store in stores.values() for shard in shards_of(store)}
    problems: list[Problem] = []
    num_bytes = 0
    for number, shard in enumerate(shards.values()):
        shard_bytes = bytes_of(shard.files)
        num_bytes += shard_bytes
        text = f"shard {number + 1:,} of {len(shards):,}: {shard.path} ({size(shard_bytes)})"
        on_progress("checking", number, len(shards), text=text)
        problems.extend(_check_shard(shard, vocab_size))
    beside: tuple[FileSum, ...] = ()
    if manifest is not None and (path_at(path) / MANIFEST_NAME).exists():
        beside = (*manifest.provenance, *(manifest.beside or ()))
        problems.extend(manifest.check_beside(path))
    return Verdict(
        path=path,
        ok=not problems,
        problems=tuple(problems),
        files=sum(map(len, shards)) + len(beside) + (manifest is not None),
        bytes=num_bytes + sum(file.size for file in beside),
        documents=next(iter(stores.values())).num_documents,
        tokens=sum(store.num_tokens for store in stores.values()) if not problems else 0,
        hashed=manifest is not None,
        vocab_size=vocab_size,
    )


def _check_shard(shard: Store, vocab_size: int | None) -> Iterator[Problem]:
    try:
        yield from shard.check(vocab_size=vocab_size)
    except StoreError as error:
        yield problem_of(error, shard.path)


def _is_there(path: str) -> bool:
    """Whether something at this path looks like a store, so that an error in it is a finding."""
    place = path_at(path)
    if place.is_dir():
        names = (MANIFEST_NAME, META_NAME)
        suffixes = (".bin", ".idx", ".jsonl")
        return any(file.name in names or file.suffix in suffixes for file in place.iterdir()) or any(
            file for pattern in (META_NAME, "*.h5", "*.hdf5") for file in place.rglob(pattern)
        )
    return place.is_file() or path_at(path + ".bin").exists() or path_at(path + ".idx").exists()


class Tiling:
    """Collects pieces of documents, and finds the documents that these do not tile. Takes 8 bytes for each document.

    A piece adds mark(end) - mark(begin) to the sum of its document, where marks are 64 bits of a hash. The marks cancel
    where one piece ends and another one begins:

        [0, 4)  [4, 9)      mark(4) - mark(0) + mark(9) - mark(4) = mark(9) - mark(0)
        [0, 4)  [5, 9)      mark(4) and mark(5) are left

    Since no piece is empty, pieces whose marks cancel form one chain from the first token to the last. A token that is
    missing or doubled is overlooked with a probability of 2^-64.
    """

    def __init__(self, num_documents: int) -> None:
        self._sums = np.zeros(num_documents, dtype=np.uint64)
        self.num_tokens = 0

    def add(self, items: PackItems) -> None:
        """Add the pieces of some packs."""
        marks = _marks(items.begins + items.lengths) - _marks(items.begins)
        np.add.at(self._sums, items.documents, marks)
        self.num_tokens += int(items.lengths.sum())

    def is_wrong(self, first: int, begins: IntArray, ends: IntArray) -> NDArray[np.bool_]:
        """Return (n,) bool: whether the pieces of each document from ``first`` on do not tile ``[begins, ends)``."""
        wrong: NDArray[np.bool_] = self._sums[first : first + len(begins)] != _marks(ends) - _marks(begins)
        return wrong


def _marks(tokens: IntArray) -> KeyArray:
    return derive_array(0, tokens)


def kept_range(lengths: IntArray, packing: Packing) -> tuple[IntArray, IntArray]:
    """Return two (n,) int64: for documents of these lengths, the begin and the end of the tokens that packs hold."""
    size = packing.seq_len
    if packing.cuts or packing.over_long == "split":
        return np.zeros_like(lengths), lengths
    if packing.over_long == "drop":
        return np.zeros_like(lengths), np.where(lengths > size, 0, lengths)
    if packing.over_long == "truncate_left":
        return np.maximum(lengths - size, 0), lengths
    return np.zeros_like(lengths), np.minimum(lengths, size)


_TOKENS_AT_ONCE = 1 << 20
_EPOCH_KEY = 1 << 40
"""The key of the epoch whose packs are checked, if each epoch packs anew."""


def check_packs(
    path: str,
    packing: Packing,
    *,
    key: str | None,
    plan_folder: Path | None,
    on_progress: OnProgress,
    **options: Unpack[OpenOptions],
) -> tuple[PackVerdict, list[Problem]]:
    """Make all packs of a store, as a run would get them, and collect what is wrong with them.

    A kept plan is checked against its hashes and against a new plan. Then each pack is made, validated, and compared
    with the store. In the end every token of every document must be in a pack or in the ledger. The check takes the
    memory of the plan, 8 bytes for each document, and some packs.

    Args:
        path: the same as for `headrace.open`.
        packing: how the documents are packed.
        key: the key that is packed, if the store has several; by default the main one, which is the first.
        plan_folder: where plans are kept; by default the cache folder.
        on_progress: called now and then with the packs that are checked.
        options: as for `headrace.open`.

    Raises:
        ConfigError: there is no such key; documents are over-long, and no policy says what to do with them; or there is
            nothing to pack.
    """
    name, store = open_key(path, key, **options)
    with store:
        folder = plan_folder or cache_folder("packs")
        place = None if folder is None else folder / plan_name(store, packing)
        kept = str(place) if place is not None and (place / KEPT_NAME).exists() else None
        if kept is not None and place is not None and (faults := list(_check_kept(store, packing, place))):
            return PackVerdict(key=name, packing=packing, kept_plan=kept, packs=0, ledger=None), faults
        dataset = PackedSequenceDataset(store, packing, plan_folder=plan_folder)
        verdict = PackVerdict(key=name, packing=packing, kept_plan=kept, packs=len(dataset), ledger=dataset.ledger)
        return verdict, list(_check_all(dataset, on_progress))


def _check_kept(store: Store, packing: Packing, place: Path) -> Iterator[Problem]:
    listing = str(place / KEPT_NAME)
    try:
        faults = check_arrays(place.parent, place.name)
        found = find_arrays(place.parent, place.name) if not faults else None
        if found is not None:
            # The hashes hold for whatever was written; only a new plan shows whether it is the right one.
            meta = msgspec.json.decode(found[1], type=PackPlanMeta)
            if meta != plan_packs(StoreLengths(store), packing).meta:
                message = "describes another plan than the one that these documents make"
                faults = [Problem(path=listing, place="", message=message)]
    except StoreError as error:
        yield problem_of(error, str(place))
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        faults = [Problem(path=listing, place="", message=f"damaged: {error}")]
    for fault in faults:
        message = f"{fault.message}; remove {place}: the plan is then made anew"
        yield msgspec.structs.replace(fault, message=message)


def _check_all(dataset: PackedSequenceDataset, on_progress: OnProgress) -> Iterator[Problem]:
    path = dataset.store.path
    faults = Faults(path, "packs")
    tiling = Tiling(dataset.store.num_documents)
    at_once = max(1, _TOKENS_AT_ONCE // dataset.seq_len)
    for first in range(0, len(dataset), at_once):
        packs = np.arange(first, min(first + at_once, len(dataset)), dtype=np.int64)
        items = dataset.items(_addresses(dataset, packs))
        tiling.add(items)
        found = list(_check_packs(dataset, packs, items))
        for row in faults.to_name(np.array([bool(messages) for messages in found])):
            yield from (Problem(path=path, place=f"pack {first + row}", message=message) for message in found[row])
        done, total = first + len(packs), len(dataset)
        text = f"{count(done)} of {count(total)}"
        on_progress("checking packs", done, total, text=text, speeds={"packs": done})
    yield from faults.rest()
    yield from _check_documents(dataset, tiling)
    yield from _check_ledger(dataset, tiling.num_tokens)


def _addresses(dataset: PackedSequenceDataset, packs: IntArray) -> IntArray:
    keys = np.full(len(packs), _EPOCH_KEY, dtype=np.uint64) if dataset.packing.repack else None
    return dataset.locate(packs, keys)


def _check_packs(dataset: PackedSequenceDataset, packs: IntArray, items: PackItems) -> Iterator[list[str]]:
    """Yield for each pack what is wrong with it."""
    sums = list(_check_sums(dataset.packing, items))
    if any(sums):
        yield from sums  # such packs cannot be made
        return
    batch = dataset.read(_addresses(dataset, packs))
    # The store, and not the plan, says where the pieces are.
    starts = dataset.store.document_begins(items.documents) + items.begins
    offsets = items.offsets.tolist()
    for row in range(len(packs)):
        some = slice(offsets[row], offsets[row + 1])
        yield _check_pack(
            dataset,
            {name: values[row] for name, values in batch.items()},
            documents=items.documents[some],
            lengths=items.lengths[some],
            starts=starts[some],
            going_on=items.continues[some],
        )


def _check_sums(packing: Packing, items: PackItems) -> Iterator[list[str]]:
    """Yield for each pack whether all its pieces have tokens, and whether they fit into it."""
    segments = -(-items.lengths // packing.segment_multiple) * packing.segment_multiple
    for first, end in pairwise(items.offsets.tolist()):
        taken, shortest = int(segments[first:end].sum()), int(items.lengths[first:end].min(initial=1))
        found = []
        if taken > packing.seq_len:
            found.append(f"its pieces take {taken:,} places, but it has only {packing.seq_len:,}")
        if packing.most_pieces and end - first > packing.most_pieces:
            found.append(f"it has {end - first:,} pieces, and max_documents is {packing.most_pieces:,}")
        if shortest < 1:
            found.append(f"a piece has {shortest} tokens; each must have at least 1")
        yield found


def _check_pack(
    dataset: PackedSequenceDataset,
    sample: Sample,
    *,
    documents: IntArray,
    lengths: IntArray,
    starts: IntArray,
    going_on: NDArray[np.bool_],
) -> list[str]:
    """Compare a pack with the validator, the plan and the store."""
    packing, store = dataset.packing, dataset.store
    segments = -(-lengths // packing.segment_multiple) * packing.segment_multiple
    left = packing.seq_len - int(segments.sum())
    borders = np.cumsum([0, *segments, left] if left else [0, *segments], dtype=np.int32)
    lasts = borders[: len(lengths)] + lengths - 1
    found = check_packed({**sample, "cu_seqlens": borders}, padding_idx=dataset.padding_idx)
    real = sample["document_ids"] >= 0
    if not np.array_equal(sample["document_ids"][real], np.repeat(documents, lengths)):
        found.append(f"document_ids are not those of its documents {documents.tolist()} of {lengths.tolist()} tokens")
    if not np.array_equal(sample["input_ids"][real], np.concatenate(store.pieces(starts, lengths))):
        found.append(f"input_ids are not the tokens of its documents {documents.tolist()}")
    expected = np.full(len(lengths), IGNORED_LABEL, dtype=np.int64)
    mask = dataset.loss_mask_key
    if going_on.any():
        after = (starts + lengths)[going_on]
        following = np.concatenate(store.pieces(after, np.ones_like(after))).astype(np.int64)
        if mask is not None:
            following[np.concatenate(store.pieces(after, np.ones_like(after), mask)) == 0] = IGNORED_LABEL
        expected[going_on] = following
    if mask is not None:
        found += _check_mask(sample, np.concatenate(store.pieces(starts, lengths, mask)) != 0, mask)
    wrong = np.flatnonzero(sample["labels"][lasts] != expected)
    if len(wrong):
        one = int(wrong[0])
        found.append(
            f"column {lasts[one]}: labels is {sample['labels'][lasts[one]]}; at the last token of document "
            f"{documents[one]} in this pack it must be {expected[one]}"
        )
    return found


def _check_mask(sample: Sample, marks: NDArray[np.bool_], key: str) -> list[str]:
    """Compare the loss mask of a pack with that of the store; ``marks`` are the store's, for all tokens except pads."""
    columns = np.flatnonzero(sample["document_ids"] >= 0)
    if len(columns) != len(marks):
        return []  # another check reports it
    # The label of a token is in the column of the token before it, if both are in the same segment.
    inside = np.flatnonzero(sample["position_ids"][columns] > 0)
    wrong = inside[sample["loss_mask"][columns[inside] - 1] != marks[inside]]
    if not len(wrong):
        return []
    column = int(columns[wrong[0]])
    return [
        f"column {column}: {key!r} of the store is {int(marks[wrong[0]])} here, and the label of this token differs"
    ]


def _check_documents(dataset: PackedSequenceDataset, tiling: Tiling) -> Iterator[Problem]:
    """Check that the packs hold every token of every document once, except those that the policy removes."""
    path = dataset.store.path
    faults = Faults(path, "documents")
    first = 0
    for lengths in dataset.store.length_chunks(CHUNK):
        begins, ends = kept_range(lengths, dataset.packing)
        for at in faults.to_name(tiling.is_wrong(first, begins, ends)):
            yield Problem(
                path=path,
                place=f"document {first + at}",
                message=f"the packs do not hold its tokens {begins[at]} to {ends[at]} (of {lengths[at]}) exactly once",
            )
        first += len(lengths)
    yield from faults.rest()


def _check_ledger(dataset: PackedSequenceDataset, num_tokens: int) -> Iterator[Problem]:
    """Compare the ledger with a count of the tokens in packs and of those that are not."""
    packing, ledger = dataset.packing, dataset.ledger
    raw = lost = 0
    for lengths in dataset.store.length_chunks(CHUNK):
        begins, ends = kept_range(lengths, packing)
        raw += int(lengths.sum())
        lost += int((lengths - (ends - begins)).sum())
    expected = {
        "raw_tokens": raw,
        "num_tokens": num_tokens,
        "truncated_tokens": lost if packing.over_long.startswith("truncate") else 0,
        "dropped_tokens": lost if packing.over_long == "drop" else 0,
        "num_packs": len(dataset),
        "pad_tokens": len(dataset) * packing.seq_len - num_tokens,
    }
    for name, value in expected.items():
        if getattr(ledger, name) != value:
            message = f"{name} of the ledger is {getattr(ledger, name):,}, but {value:,} were counted"
            yield Problem(path=dataset.store.path, place="", message=message)
