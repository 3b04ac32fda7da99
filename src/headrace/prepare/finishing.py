"""The end of a run: the names of its files, and the manifest."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.io import FileSum
from headrace.prepare.ledger import RunLedger
from headrace.prepare.run_plan import RunPlan
from headrace.prepare.run_state import RunState
from headrace.prepare.taking import ORIGINS_NAME, SHARDS_NAME
from headrace.stores import (
    MANIFEST_NAME,
    BackendInfo,
    InputFile,
    InputOrder,
    Manifest,
    OutputShard,
    ShuffledOrder,
    TokenizerInfo,
    WrittenShard,
    save_manifest,
)


def name_outputs(
    plan: RunPlan, shards: Sequence[tuple[WrittenShard, ...]], origins: Sequence[FileSum], work: Path
) -> tuple[list[OutputShard], dict[str, str]]:
    """The shards as the manifest lists them, and the moves that give all files their final names.

    One shard is ``text_document``, as Megatron's tool names it; of several each has its number behind that.
    """
    outputs: list[OutputShard] = []
    moves = {MANIFEST_NAME: MANIFEST_NAME}
    for file in origins:
        moves[f"{ORIGINS_NAME}/{file.name}"] = f"provenance/{file.name}"
    late: dict[str, str] = {}
    folder = work / SHARDS_NAME
    for number, written in enumerate(shards):
        for index, shard in enumerate(written):
            source = Path(shard.prefix).relative_to(folder).as_posix()
            if shard.format == "keyed":
                outputs.append(OutputShard.of(shard, folder))
                pairs = [(f"{source}/{file.name}", f"{source}/{file.name}") for file in shard.files]
            else:
                key = plan.keys[index]
                target = f"{key}_document" if len(shards) == 1 else f"{key}_document_{number:05d}"
                files = tuple(
                    msgspec.structs.replace(file, name=target + Path(file.name).suffix) for file in shard.files
                )
                renamed = msgspec.structs.replace(shard, files=files, prefix=str(folder / target))
                outputs.append(OutputShard.of(renamed, folder, key=key))
                pairs = [(source + suffix, target + suffix) for suffix in (".bin", ".idx")]
            for old, new in pairs:
                where = late if new.endswith((".idx", "meta.json")) else moves
                where[f"{SHARDS_NAME}/{old}"] = new
    return outputs, {**moves, **late}


def build_manifest(
    plan: RunPlan,
    state: RunState,
    ledger: RunLedger,
    outputs: Sequence[OutputShard],
    origins: Sequence[FileSum],
    work: Path,
) -> Manifest:
    """Balance the ledger, and write the manifest into the work folder.

    Raises:
        HeadraceError: something was lost or made up on the way.
    """
    first_key = plan.keys[0]
    num_documents = sum(shard.documents for shard in outputs if first_key in shard.keys)
    balance = ledger.balance(
        num_documents=num_documents, num_tokens=sum(shard.tokens for shard in outputs), num_origins=num_documents
    )
    choice, seed = plan.choice, plan.options.output.shuffle
    manifest = Manifest(
        inputs=tuple(
            InputFile(path=file.name, format=file.format, size=file.size_bytes, xxh3_128=digest)
            for file, digest in zip(plan.files, ledger.state.hashes, strict=True)
        ),
        options=_options(plan),
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
            proved={"first_documents": plan.first_documents, "sampled_documents": ledger.state.proved},
            routed=ledger.state.routed,
            routes=choice.routes,
            from_task_by=state.fallback,
        ),
        order=InputOrder() if seed is None else ShuffledOrder(seed=seed),
        outputs=tuple(outputs),
        ledger=balance,
        errors=tuple(ledger.state.errors),
        provenance=tuple(origins),
    )
    return save_manifest(work, manifest)


def _options(plan: RunPlan) -> dict[str, Any]:
    options = plan.options
    names = ("records", "tokens", "filters", "deduplicate", "output", "errors")
    # By way of JSON, so that what is returned equals what is read back.
    return {name: msgspec.json.decode(msgspec.json.encode(getattr(options, name))) for name in names}
