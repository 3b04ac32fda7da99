"""What ``headrace prepare`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.figures import count, duration, listing, plural, short, size
from headrace.cli.prepare_recipe import lines

if TYPE_CHECKING:
    from headrace.prepare import Estimate, TextProgress
    from headrace.stores import Manifest

_MAX_FILES = 4
_MAX_ERRORS = 5

_PHASES = {
    "tokenizer": "loading the tokeniser",
    "probe": "probing the tokeniser",
    "prove": "proving the first documents",
    "encode": "encoding",
    "sort": "sorting",
    "finish": "finishing",
}


class Speed:
    """Makes the line that shows how far a run is.

    Speeds and the time left count from the first progress of a phase on: what was there before (the work of a run that
    was killed, the start) took other time.
    """

    def __init__(self) -> None:
        self._first: tuple[TextProgress, float] | None = None

    def see(self, progress: TextProgress, elapsed_s: float) -> bool:
        """Take note of every progress, whether it is shown or not. Whether a phase begins with it."""
        if self._first is not None and self._first[0].phase == progress.phase:
            return False
        self._first = progress, elapsed_s
        return True

    def text(self, progress: TextProgress, elapsed_s: float) -> str:
        """The phase, its share, documents, speeds and the time left, in one line."""
        name = _PHASES[progress.phase]
        if not progress.total_bytes:
            return name
        first, since_s = self._first or (progress, elapsed_s)
        took_s = max(elapsed_s - since_s, 1e-9)
        num_bytes = progress.input_bytes - first.input_bytes
        share = progress.input_bytes / max(progress.total_bytes, 1)
        left = duration((progress.total_bytes - progress.input_bytes) / num_bytes * took_s) if num_bytes > 0 else "?"
        shown = f"{name} {share:6.1%}"
        if progress.phase in ("probe", "prove"):
            return f"{shown}  {left} left"
        speed = f"{size(num_bytes / took_s)}/s"
        if progress.phase == "encode":
            speed += f"  {short((progress.tokens - first.tokens) / took_s)}tokens/s"
        return f"{shown}  {count(progress.documents)} documents  {speed}  {left} left"


def result(manifest: Manifest, output: str, elapsed_s: float) -> dict[str, object]:
    """What ``--json`` prints."""
    ledger, tokenizer, backend = manifest.ledger, manifest.tokenizer, manifest.backend
    return {
        "output": output,
        "files": [file.name for shard in manifest.outputs for file in shard.files],
        "format": manifest.outputs[0].format,
        "keys": list(manifest.keys),
        "shards": len(manifest.outputs),
        "dtype": next(iter(manifest.outputs[0].keys.values())).dtype,
        "documents": ledger.documents.kept,
        "documents_read": ledger.documents.read,
        "documents_dropped": ledger.documents.dropped,
        "tokens": ledger.tokens.kept,
        "tokens_dropped": ledger.tokens.dropped,
        "errors": len(manifest.errors),
        "vocab_size": tokenizer.vocab_size if tokenizer else None,
        "eod": tokenizer.eod if tokenizer else None,
        "bos": tokenizer.bos if tokenizer else None,
        "backend": backend.name if backend else None,
        "inputs": len(manifest.inputs),
        "input_bytes": sum(file.size for file in manifest.inputs),
        "seconds": round(elapsed_s, 3),
        **_samples(manifest),
    }


def _samples(manifest: Manifest) -> dict[str, object]:
    """What a run of a recipe adds to ``--json``."""
    samples = manifest.ledger.samples
    if samples is None:
        return {}
    return {
        "records": samples.records,
        "supervised": samples.supervised,
        "tokens_by_key": {key: tokens.kept for key, tokens in samples.keys.items()},
        "tokens_truncated": manifest.ledger.tokens.truncated,
        "notes": samples.notes,
        "layouts": [source.get("layout") for source in manifest.options["recipe"]["inputs"]],
        "domains": sorted({shard.prefix.rpartition("/")[0] for shard in manifest.outputs} - {""}),
    }


def summary(manifest: Manifest, output: str, elapsed_s: float, *, is_whole: bool) -> list[str]:
    """What a person reads at the end; without speeds where a part was done by an earlier run."""
    ledger, tokenizer, backend = manifest.ledger, manifest.tokenizer, manifest.backend
    input_bytes = sum(file.size for file in manifest.inputs)
    per_s = 1 / max(elapsed_s, 1e-9)
    dtype = next(iter(manifest.outputs[0].keys.values())).dtype
    pairs = [
        ("documents", count(ledger.documents.kept) + _dropped(ledger.documents.dropped)),
        *_tokens(manifest, dtype),
        ("input", f"{plural(len(manifest.inputs), 'file')}, {size(input_bytes)}"),
    ]
    if tokenizer is not None:
        eod = "" if tokenizer.eod is None else f", end of document {tokenizer.eod}"
        bos = "" if tokenizer.bos is None else f", begin {tokenizer.bos}"
        pairs.append(("tokeniser", f"{tokenizer.source}, vocabulary {count(tokenizer.vocab_size)}{bos}{eod}"))
    if backend is not None:
        proved = sum(backend.proved.values())
        how = f"{backend.name} {backend.version}" + (f", {count(proved)} texts proved" if proved else "")
        pairs.append(("backend", how))
        if backend.routed:
            pairs.append(("", f"{plural(backend.routed, 'text')} by tokenizers: {backend.routes}"))
        if backend.from_task_by:
            pairs.append(("", f"then tokenizers, from {backend.from_task_by}"))
    if ledger.documents.with_special_tokens:
        policy = manifest.options["tokens"]["special_tokens_in_text"]
        number = plural(ledger.documents.with_special_tokens, "text")
        pairs.append(("special", f"{number} with a special token's name: {policy}"))
    files = [f"{file.name} {size(file.size)}" for shard in manifest.outputs for file in shard.files]
    more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
    pairs.append(("files", ", ".join(files[:_MAX_FILES]) + more))
    speeds = f"{size(input_bytes * per_s)}/s, {short(ledger.tokens.kept * per_s)}tokens/s"
    pairs.append(
        ("time", f"{duration(elapsed_s)}, {speeds}" if is_whole else f"{duration(elapsed_s)} since it went on")
    )
    shown = [f"{output}: complete", *listing(pairs)]
    if manifest.errors:
        shown.append(f"  {plural(len(manifest.errors), 'bad record')} skipped, all listed in headrace.json:")
        shown += [
            f"    {error.file}, {error.unit} {error.line:,}: {error.message}" for error in manifest.errors[:_MAX_ERRORS]
        ]
    return shown


def _tokens(manifest: Manifest, dtype: str) -> list[tuple[str, str]]:
    if manifest.ledger.samples is None:
        return [("tokens", f"{count(manifest.ledger.tokens.kept)} ({dtype})")]
    dtypes = {key: info.dtype for shard in manifest.outputs for key, info in shard.keys.items()}
    return lines(manifest.ledger.samples, dtypes)


def estimate_lines(estimate: Estimate) -> list[str]:
    """The estimate for people."""
    share = estimate.sampled_bytes / max(estimate.input_bytes, 1)
    documents = plural(estimate.sampled_documents, "document")
    sample = f"{size(estimate.sampled_bytes)} ({share:.2%}), {documents}, scaled up"
    about = "" if estimate.is_exact else "about "
    pairs = [
        ("input", f"{plural(estimate.inputs, 'file')}, {size(estimate.input_bytes)}"),
        ("sample", "all of it" if estimate.is_exact else sample),
        ("documents", f"{about}{count(estimate.documents)}"),
        ("tokens", f"{about}{count(estimate.tokens)} ({estimate.dtype})"),
        ("output", f"about {size(estimate.output_bytes)}"),
        ("backend", estimate.backend + (f", since {estimate.fallback}" if estimate.fallback else "")),
    ]
    if estimate.dropped:
        pairs.append(("filters", f"of the sample{_dropped(estimate.dropped)}"))
    if estimate.bad_records:
        pairs.append(("errors", f"{plural(estimate.bad_records, 'bad record')} in the sample: {estimate.first_error}"))
    return ["dry run: nothing was written", *listing(pairs)]


def _dropped(reasons: dict[str, int]) -> str:
    return f" ({', '.join(f'{name} {count(number)}' for name, number in reasons.items())} dropped)" if reasons else ""
