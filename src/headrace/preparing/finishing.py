"""The end of a run: the names of its files, and the manifest."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.io import FileSum, as_read_back, file_sum
from headrace.preparing.committer import ORIGINS_NAME, SHARDS_NAME
from headrace.preparing.filters import function_fingerprint
from headrace.preparing.ledger import RunLedger
from headrace.preparing.output_folder import RunState
from headrace.preparing.run_plan import RunPlan
from headrace.preparing.store_output import series_folder
from headrace.stores import (
    MANIFEST_NAME,
    BackendInfo,
    DocumentLedger,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenizerInfo,
    TokenLedger,
    WrittenShard,
    save_manifest,
)

DOMAIN_OPTION = "domain"
"""The key in the ``options`` of a domain's manifest that tells which documents of the whole store it holds."""


def name_outputs(
    plan: RunPlan,
    series: Sequence[Sequence[tuple[WrittenShard, ...]]],
    domains: Sequence[str],
    origins: Sequence[FileSum],
    work: Path,
) -> tuple[list[OutputShard], dict[str, str]]:
    """The shards as the manifest lists them, and the moves that give all files their final names.

    A single shard is called ``text_document``, as by Megatron's tool; if there are several, each has its number after
    that. The series of a domain lies in a folder with its name and a manifest of its own.
    """
    outputs: list[OutputShard] = []
    moves = {MANIFEST_NAME: MANIFEST_NAME}
    for file in origins:
        moves[f"{ORIGINS_NAME}/{file.name}"] = f"provenance/{file.name}"
    late: dict[str, str] = {}
    for number, shards in enumerate(series):
        folder, below = work / SHARDS_NAME, ""
        if domains:
            folder, below = series_folder(folder, number), f"{domains[number]}/"
            moves[f"{folder.relative_to(work).as_posix()}/{MANIFEST_NAME}"] = below + MANIFEST_NAME
        for shard_number, written in enumerate(shards):
            named, pairs = _named(plan, shard_number, written, folder, is_single=len(shards) == 1)
            outputs += [msgspec.structs.replace(shard, prefix=below + shard.prefix) for shard in named]
            for old, new in pairs:
                where = moves if new.endswith(".bin") else late
                where[f"{folder.relative_to(work).as_posix()}/{old}"] = below + new
    return outputs, {**moves, **late}


def finished_outputs(
    plan: RunPlan,
    series: Sequence[Sequence[tuple[int, tuple[WrittenShard, ...]]]],
    domains: Sequence[str],
    work: Path,
) -> dict[str, str]:
    """The moves of shards that are complete before others of their series have begun; see `name_outputs`.

    Args:
        plan: the plan.
        series: for each series, shards with their numbers.
        domains: names of the domains.
        work: the work folder.
    """
    moves: dict[str, str] = {}
    for number, shards in enumerate(series):
        folder, below = work / SHARDS_NAME, ""
        if domains:
            folder, below = series_folder(folder, number), f"{domains[number]}/"
        for shard_number, written in shards:
            _, pairs = _named(plan, shard_number, written, folder, is_single=False)
            moves |= {f"{folder.relative_to(work).as_posix()}/{old}": below + new for old, new in pairs}
    return moves


def _named(
    plan: RunPlan, number: int, written: tuple[WrittenShard, ...], folder: Path, *, is_single: bool
) -> tuple[list[OutputShard], list[tuple[str, str]]]:
    """The shards with this number, and pairs of the present and final names of their files in the folder of the series.

    ``is_single`` says whether the series has no other shard.
    """
    outputs: list[OutputShard] = []
    pairs: list[tuple[str, str]] = []
    masks = {column.key for column in plan.columns if column.kind == "mask"}
    for index, shard in enumerate(written):
        source = Path(shard.prefix).relative_to(folder).as_posix()
        if shard.format != "indexed":
            outputs.append(OutputShard.of(shard, folder))
            below = f"{source}/" if shard.format == "keyed" else ""
            pairs += [(below + file.name, below + file.name) for file in shard.files]
            continue
        key = plan.keys[index]
        target = f"{key}_document" if is_single else f"{key}_document_{number:05d}"
        files = tuple(msgspec.structs.replace(file, name=target + Path(file.name).suffix) for file in shard.files)
        renamed = msgspec.structs.replace(shard, files=files, prefix=str(folder / target))
        outputs.append(OutputShard.of(renamed, folder, key=key))
        pairs += [(source + suffix, target + suffix) for suffix in (".bin", ".idx")]
    return [_with_masks(shard, masks) for shard in outputs], pairs


def _with_masks(shard: OutputShard, masks: Collection[str]) -> OutputShard:
    """The entry, with each key marked as a mask or not."""
    keys = {key: msgspec.structs.replace(info, mask=key in masks) for key, info in shard.keys.items()}
    return msgspec.structs.replace(shard, keys=keys)


def build_manifest(
    plan: RunPlan,
    state: RunState,
    ledger: RunLedger,
    outputs: Sequence[OutputShard],
    origins: Sequence[FileSum],
    work: Path,
    supervised: Sequence[int] = (),
) -> Manifest:
    """Balance the ledger, and write the manifests into the work folder.

    The manifest of the whole store lists the hashes of those of the domains.

    Raises:
        HeadraceError: the ledger does not balance: something was lost or added on the way.
    """
    first_key = plan.keys[0]
    num_documents = sum(shard.documents for shard in outputs if first_key in shard.keys)
    counts = _check_parallel(plan, outputs)
    balance = ledger.balance(
        num_documents=num_documents,
        num_tokens=sum(counts.values()),
        num_origins=num_documents,
        keys=counts,
        supervised=sum(supervised),
    )
    choice = plan.choice
    manifest = Manifest(
        inputs=tuple(
            InputFile(path=file.name, format=file.format, size=file.size_bytes, xxh3_128=digest)
            for file, digest in zip(plan.files, ledger.state.hashes, strict=True)
        ),
        options=described_options(plan),
        tokenizer=TokenizerInfo(
            source=plan.tokenizer.name,
            xxh3_128=plan.tokenizer.fingerprint,
            vocab_size=plan.tokenizer.vocab_size,
            eod=plan.eod,
            bos=plan.bos,
            eod_text=plan.tokenizer.token_text(plan.eod),
            bos_text=plan.tokenizer.token_text(plan.bos),
            library_version=importlib.metadata.version("tokenizers"),
        ),
        backend=BackendInfo(
            name=choice.name,
            version=choice.version,
            why=dict(choice.reasons),
            proved={"first_documents": plan.first_documents, "sampled_documents": ledger.tally.proved},
            routed=ledger.tally.routed,
            routes=choice.routes,
            from_task_by=state.fallback,
        ),
        outputs=tuple(outputs),
        ledger=balance,
        errors=tuple(ledger.state.errors),
        provenance=tuple(origins),
    )
    if domains := _save_domains(plan, state, manifest, work, supervised):
        manifest = msgspec.structs.replace(manifest, beside=domains)
    return save_manifest(work, manifest)


def _save_domains(
    plan: RunPlan, state: RunState, manifest: Manifest, work: Path, supervised: Sequence[int]
) -> tuple[FileSum, ...]:
    """Write a manifest into the folder of each domain, so that it opens as a separate store. Returns their hashes.

    The manifest tells which documents of the whole store the domain holds. The table of origins lies only in the whole
    store.
    """
    first = 0
    sums = []
    for number, name in enumerate(state.domains):
        folder = series_folder(work / SHARDS_NAME, number)
        shards = [shard for shard in manifest.outputs if shard.prefix.startswith(f"{name}/")]
        own = [msgspec.structs.replace(shard, prefix=shard.prefix.removeprefix(f"{name}/")) for shard in shards]
        num_documents = sum(shard.documents for shard in own if plan.keys[0] in shard.keys)
        counts = _check_parallel(plan, own)
        save_manifest(
            folder,
            msgspec.structs.replace(
                manifest,
                inputs=(),
                options={**manifest.options, DOMAIN_OPTION: {"name": name, "first_document": first}},
                outputs=tuple(own),
                ledger=Ledger(
                    documents=DocumentLedger(read=num_documents, kept=num_documents),
                    tokens=TokenLedger(made=sum(counts.values()), kept=sum(counts.values())),
                    samples=SampleLedger(
                        keys={key: TokenLedger(made=count, kept=count) for key, count in counts.items()},
                        supervised=supervised[number],
                    ),
                ),
                errors=(),
                provenance=(),
                xxh3_128="",
            ),
        )
        sums.append(msgspec.structs.replace(file_sum(folder / MANIFEST_NAME), name=f"{name}/{MANIFEST_NAME}"))
        first += num_documents
    return tuple(sums)


def _check_parallel(plan: RunPlan, outputs: Sequence[OutputShard]) -> dict[str, int]:
    """The number of ids in the store for each key.

    Raises:
        HeadraceError: a column does not have one value for each id of the key that it is parallel to.
    """
    values: Counter[str] = Counter()
    for shard in outputs:
        values.update({key: info.tokens for key, info in shard.keys.items()})
    for column in plan.columns:
        if column.parallel_to and values[column.key] != values[column.parallel_to]:
            raise HeadraceError(
                f"the ledger does not balance: {column.key!r} has {values[column.key]:,} values, "
                f"{column.parallel_to!r} {values[column.parallel_to]:,}. Nothing was written. This is a defect of "
                "Headrace: please report it."
            )
    return {column.key: values[column.key] for column in plan.columns if column.kind == "ids"}


def described_options(plan: RunPlan) -> dict[str, Any]:
    """The options of a run as its manifest lists them."""
    options = plan.options
    function = options.filters.function
    # The code of the function may change later.
    code = {} if function is None else {"filter": function_fingerprint(function)}
    if plan.recipe is not None:
        return {**plan.recipe.described, **code}
    names = ("records", "tokens", "filters", "deduplicate", "output", "errors")
    return {**{name: as_read_back(getattr(options, name)) for name in names}, **code}
