"""The end of a run: its manifest, and those of its domains."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.io import as_read_back, file_sum
from headrace.preparing.cutting import CutResult
from headrace.preparing.filters import function_fingerprint
from headrace.preparing.joining import Joined
from headrace.preparing.ledger import RunLedger
from headrace.preparing.outputs.place import write_manifests
from headrace.preparing.run_plan import RunPlan
from headrace.stores import (
    BackendInfo,
    DocumentLedger,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenizerInfo,
    TokenLedger,
)

DOMAIN_OPTION = "domain"
"""The key in the ``options`` of a domain's manifest that tells which documents of the whole store it holds."""


def build_manifest(
    plan: RunPlan, cut: CutResult, joined: Sequence[Joined], from_task_by: str, work: Path
) -> tuple[Manifest, dict[str, str]]:
    """Balance the ledger, and write the manifests into the work folder.

    The series of a domain lies in a folder with its name and a manifest of its own. The manifest of the whole store
    lists the hashes of those of the domains.

    Args:
        plan: the plan.
        cut: what all parts add up to.
        joined: the shards, in the order of ``cut``.
        from_task_by: why ``tokenizers`` encodes from some task on; empty if it does not.
        work: the work folder.

    Returns:
        The manifest of the whole store; and the files of the manifests in the work folder, with their names in the
        output, the one of the whole store last.

    Raises:
        HeadraceError: the ledger does not balance: something was lost or added on the way.
    """
    ledger = RunLedger(plan.files, cut.ledger, sample_by=plan.options.records.sample_by)
    series: list[list[OutputShard]] = [[] for _ in range(cut.num_series)]
    supervised = [0] * cut.num_series
    for shard, made in sorted(zip(cut.shards, joined, strict=True), key=lambda pair: (pair[0].series, pair[0].number)):
        series[shard.series] += made.outputs
        supervised[shard.series] += made.supervised
    below = [f"{name}/" for name in cut.domains] or [""]
    outputs = [
        msgspec.structs.replace(shard, prefix=folder + shard.prefix)
        for folder, shards in zip(below, series, strict=True)
        for shard in shards
    ]
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
            from_task_by=from_task_by,
        ),
        outputs=tuple(outputs),
        ledger=balance,
        errors=tuple(ledger.state.errors),
        provenance=cut.origins,
    )
    domains, first = dict[str, Manifest](), 0
    for name, shards, trained in zip(cut.domains, series, supervised, strict=False):
        domains[name] = own = _of_domain(plan, manifest, name, first, shards, trained)
        first += own.ledger.documents.kept
    _, of_domains = write_manifests(work, domains)
    if of_domains:
        beside = tuple(msgspec.structs.replace(file_sum(work / path), name=name) for path, name in of_domains.items())
        manifest = msgspec.structs.replace(manifest, beside=beside)
    [manifest], last = write_manifests(work, {"": manifest})
    return manifest, of_domains | last


def _of_domain(
    plan: RunPlan, manifest: Manifest, name: str, first: int, shards: Sequence[OutputShard], supervised: int
) -> Manifest:
    """The manifest in the folder of a domain, so that it opens as a separate store.

    It tells which documents of the whole store the domain holds. The table of origins lies only in the whole store.
    """
    num_documents = sum(shard.documents for shard in shards if plan.keys[0] in shard.keys)
    counts = _check_parallel(plan, shards)
    return msgspec.structs.replace(
        manifest,
        inputs=(),
        options={**manifest.options, DOMAIN_OPTION: {"name": name, "first_document": first}},
        outputs=tuple(shards),
        ledger=Ledger(
            documents=DocumentLedger(read=num_documents, kept=num_documents),
            tokens=TokenLedger(made=sum(counts.values()), kept=sum(counts.values())),
            samples=SampleLedger(
                keys={key: TokenLedger(made=count, kept=count) for key, count in counts.items()},
                supervised=supervised,
            ),
        ),
        errors=(),
        provenance=(),
        xxh3_128="",
    )


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
    names = ("records", "tokens", "filters", "deduplicate", "output", "errors")
    kept = {name: as_read_back(getattr(options, name)) for name in names}
    if plan.recipe is not None:
        del kept["tokens"]  # the recipe says them
        kept = {**plan.recipe.described, **kept}
    return {**kept, **code}
