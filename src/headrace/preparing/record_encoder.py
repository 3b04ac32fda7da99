"""Makes documents of several keys from blocks of whole records, as a recipe says.

`WatchedEncoder` encodes the texts of a recipe with a fast library, and compares a sample of them with the reference
tokeniser. `find_end_names` finds the tokens that begin and end a sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InputError, RenderLimitError
from headrace.io import AnyPath
from headrace.preparing import documents
from headrace.preparing.backends import REFERENCE, MismatchError, ProvedEncoder, RefusedTextError
from headrace.preparing.backends.tokenizer import USUAL_BOSES, USUAL_EODS, TextTokenizer
from headrace.preparing.columns import Rows, total_lengths
from headrace.preparing.documents import BlockState, Documents
from headrace.preparing.duplicates import hash_documents
from headrace.preparing.filters import Filters
from headrace.preparing.ledger import LENGTH, NO_DOCUMENTS, NO_TOKENS, Tally, added
from headrace.preparing.run_plan import RecipeSetup, Setup
from headrace.preparing.sources import Block
from headrace.samples.maker import MadeDocuments, SampleMaker
from headrace.samples.masking.results import MISSING_BOS
from headrace.samples.recipe import Recipe
from headrace.samples.templates import ChatTemplate, TemplateSetup, special_tokens
from headrace.samples.templates.load import CONFIG, GENERATION_CONFIG, read_json
from headrace.samples.tokenizer import TokenizerFile
from headrace.stores import SampleLedger, TokenLedger


class WatchedEncoder:
    """A `TextEncoder` of ``headrace.samples`` that compares a sample of the texts with the reference tokeniser.

    The sample is chosen by the hash of each text, so that it does not depend on other texts.
    """

    def __init__(self, proved: ProvedEncoder, sample_key: int) -> None:
        self._proved = proved
        self._seed = sample_key & (2**64 - 1)

    def encode(self, texts: list[str], /) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all texts in a row, and the number of tokens of each text.

        Raises:
            InputError: the reference tokeniser refuses a text.
            MismatchError: the library differs from the reference tokeniser.
        """
        hashes = (xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), self._seed) for text in texts)
        sampled = np.fromiter(hashes, np.uint64, len(texts)) % np.uint64(documents.SAMPLE_ONE_IN) == 0
        try:
            encoded = self._proved.encode(texts, sampled)
        except RefusedTextError as error:
            raise InputError(f"the tokeniser refuses the text: {error}; found {texts[error.index][:60]!r}") from error
        return encoded.ids, encoded.lengths


class RecordEncoder:
    """Makes the samples of blocks, and counts them. Each input of the recipe has a maker, created when first needed."""

    def __init__(self, setup: Setup, recipe: RecipeSetup, proved: ProvedEncoder) -> None:
        self._columns = setup.plan.columns
        self._with_hashes = bool(setup.num_ranges)
        self._making = recipe
        self._sources = recipe.sources
        self._proved = proved
        self._encoder = None if proved.name == REFERENCE else WatchedEncoder(proved, setup.plan.sample_key)
        self._filters = Filters(setup.plan.options.filters)
        self._makers: dict[tuple[int, bool], SampleMaker] = {}

    def encode(self, block: Block, file: int) -> Documents:
        """Make the documents of a block of this input file.

        Raises:
            MismatchError: the fast tokeniser differs from the reference tokeniser.
            RenderLimitError: the template takes more time or memory than allowed; the error has the record's line.
            ConfigError: the recipe cannot be followed for any record.
        """
        records = block.records or []
        state = BlockState(block)
        state.apply(self._filters)
        num_filtered = int(np.count_nonzero(~state.alive)) - len(state.refused)
        alive = np.flatnonzero(state.alive)
        source = self._sources[file]
        sampled, routed = self._proved.num_sampled, self._proved.num_routed
        taken = records if state.alive.all() else [records[index] for index in alive.tolist()]
        try:
            made = self._maker(source).make(taken)
        except RenderLimitError as error:
            raise error.at(int(block.lines[alive[error.record]])) from None
        self._confirm(made, taken, source)
        for dropped in made.dropped:
            state.drop(int(alive[dropped.record]), dropped.reason)
        for bad in made.bad:
            state.refuse(int(alive[bad.record]), bad.message)
        owners = alive[made.records]
        rows, domains = self._rows(made)
        ids = [lengths for column, (_, lengths) in zip(self._columns, rows, strict=True) if column.kind == "ids"]
        num_split = len(made) - len(np.unique(made.records))
        counts, samples = made.counts, self._samples(made, num_filtered)
        tokens = functools.reduce(added, samples.keys.values(), NO_TOKENS)
        tally = Tally(
            documents=msgspec.structs.replace(
                NO_DOCUMENTS,
                empty=int(np.count_nonzero(total_lengths(ids, len(owners)) == 0)),
                with_special_tokens=counts.with_special_tokens,
            ),
            tokens=msgspec.structs.replace(tokens, eod=counts.eos, bos=counts.bos),
            samples=samples,
            split=num_split,
            proved=self._proved.num_sampled - sampled,
            routed=self._proved.num_routed - routed,
        )
        hashes = hash_documents(self._columns, rows) if self._with_hashes else None
        return state.documents(rows, owners, tally, text_hashes=hashes, domains=domains)

    def _maker(self, source: int, *, is_watched: bool = True) -> SampleMaker:
        found = self._makers.get((source, is_watched))
        if found is None:
            encoder = self._encoder if is_watched else None
            found = self._makers[source, is_watched] = make_maker(
                self._making, self._proved.file, source=source, encoder=encoder
            )
        return found

    def _confirm(self, made: MadeDocuments, records: Sequence[Any], source: int) -> None:
        """Make bad records again with the reference tokeniser, since the fault may be the fast library's.

        Raises:
            MismatchError: with the reference tokeniser a record is good.
        """
        if self._encoder is None or not made.bad:
            return
        for bad in made.bad:
            again = self._maker(source, is_watched=False).make([records[bad.record]])
            if not again.bad:
                raise MismatchError(bad.record, f"with {self._proved.name} a record is bad that is good: {bad.message}")

    def _rows(self, made: MadeDocuments) -> tuple[Rows, list[str]]:
        """The values of each column, and the names of the domains in the order of their first appearance."""
        ones = np.ones(len(made), np.int64)
        names = {name: number for number, name in enumerate(dict.fromkeys(made.domains or ()))}
        rows = []
        for column in self._columns:
            if column.kind == "domain":
                numbers = np.array([names[name] for name in made.domains or ()], column.dtype)
                rows.append((numbers, ones))
            else:
                rows.append((made.arrays[column.key].values, made.arrays[column.key].lengths))
        return rows, list(names)

    def _samples(self, made: MadeDocuments, num_filtered: int) -> SampleLedger:
        counts = made.counts
        stored = {key.name: key.stored for key in self._maker_keys}
        return SampleLedger(
            records=counts.kept + sum(counts.dropped.values()) + num_filtered,
            keys={
                stored[name]: TokenLedger(
                    made=sums.made,
                    kept=sums.kept,
                    dropped=dict(sums.dropped),
                    truncated={LENGTH: sums.truncated} if sums.truncated else {},
                )
                for name, sums in counts.tokens.items()
            },
            supervised=counts.supervised,
            notes=dict(counts.notes),
        )

    @functools.cached_property
    def _maker_keys(self) -> tuple[Any, ...]:
        return self._maker(self._sources[0]).keys


def make_maker(making: RecipeSetup, file: TokenizerFile, *, source: int, encoder: Any = None) -> SampleMaker:
    """The `SampleMaker` for one input of the recipe.

    Raises:
        ConfigError: the recipe and the tokeniser do not fit together.
    """
    template = None
    if making.template is not None:
        template = ChatTemplate(msgspec.json.decode(making.template, type=TemplateSetup))
    return SampleMaker(
        msgspec.json.decode(making.recipe, type=Recipe),
        file,
        template=template,
        encoder=encoder,
        special_tokens=making.special_tokens,
        before_text=making.before_text,
        generation_ends=making.generation_ends,
        source=source,
    )


_USUAL = {"eos_token": USUAL_EODS, "bos_token": USUAL_BOSES}
_USED = {
    "eos_token": ("eos", "ends", "`ends: {eos: TOKEN}` chooses another, `ends: {append_eos: false}` none"),
    "bos_token": ("bos", "begins", "`ends: {bos: TOKEN}` chooses another, `ends: {bos: never}` none"),
}


class EndNames(NamedTuple):
    """The tokens that begin and end a sequence, and how they were found."""

    tokens: dict[str, str]
    """``eos_token``, ``bos_token`` and the other special tokens that the folder names."""

    by_vocabulary: frozenset[str]
    """The names among them that were found only because the vocabulary has one usual token for them."""

    generation_ends: tuple[str, ...]
    """The tokens at which ``generation_config.json`` ends a generated text (``eos_token_id``)."""


def find_end_names(known: TextTokenizer, folder: AnyPath, template: TemplateSetup | None) -> EndNames:
    """Find the tokens at the ends of a sequence, for a `SampleMaker`, which prefers those of its template.

    A token that neither the template nor a file of the folder names is the only usual token that the vocabulary has.
    If the configuration says that there is none (``"bos_token": null``), there is none.
    """
    config: dict[str, Any] = read_json(folder / CONFIG)
    named = special_tokens(folder) | (dict(template.special_tokens) if template is not None else {})
    found = {}
    for name, usual in _USUAL.items():
        is_there = [token for token in usual if token in known.known_tokens]
        if len(is_there) == 1 and name not in named and name not in config:
            found[name] = is_there[0]
    stops: Any = read_json(folder / GENERATION_CONFIG).get("eos_token_id")
    numbers = stops if isinstance(stops, list) else [stops]
    ends = tuple(token for token, number in known.special_tokens.items() if number in numbers)
    return EndNames({**found, **named}, frozenset(found), ends)


def end_notices(names: EndNames, counts: Mapping[str, int], num_records: int, begin: str) -> Iterator[str]:
    """Notices for the user about the tokens at the ends, from the samples of the first records.

    Args:
        names: the tokens, as `find_end_names` returned them.
        counts: how many tokens were added under ``eos`` and ``bos``, and how often `MISSING_BOS` was noted.
        num_records: number of the first records.
        begin: the tokens with which texts begin as the tokeniser begins them; empty if the recipe says how they begin.
    """
    if begin and counts.get("bos"):
        yield f"texts begin with {begin!r}, as the tokeniser begins them; `ends: {{bos: never}}` leaves it out"
    for name, (short, verb, options) in _USED.items():
        if name in names.by_vocabulary and counts.get(short) and not (begin and short == "bos"):
            yield (
                f"{names.tokens[name]!r} {verb} a sequence: neither the chat template nor tokenizer_config.json names "
                f"{name}, and it is the only token of the vocabulary with a usual name. {options}"
            )
    if counts.get(MISSING_BOS):
        yield (
            f"{counts[MISSING_BOS]:,} sequences of the first {num_records:,} records do not begin with BOS, although "
            "the tokeniser begins texts with it: the chat template or the text has none. `ends: {bos: always}` adds "
            "it; all such sequences are counted as missing_bos, and `mask: {on_missing_bos: error}` refuses them"
        )
