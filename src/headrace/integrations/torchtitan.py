"""torchtitan's data loader: `HeadraceDataLoader`, for the release 0.3 and for the newer loader interface of its main.

    Trainer.Config(dataloader=HeadraceDataLoader.Config(run=make_run)) --> Trainer --> build --> micro-batches

torchtitan counts batches and knows neither their samples nor where its data end. Here a step of the trainer is a step
of the run: what the last step lacks is filled with tokens that no loss is computed for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro

try:  # the main branch after 0.3
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:
    from torchtitan.components.dataloader import BaseDataLoader

from headrace.datasets import Run
from headrace.errors import ConfigError, StateError
from headrace.loader import Loader, Ranks, Reading
from headrace.plan import RunRecipe

IGNORED = -100
"""torchtitan's ``IGNORE_INDEX``: labels that no loss is computed for."""

_STATE, _RECIPE = "headrace", "recipe"


class HeadraceDataLoader(BaseDataLoader):  # type: ignore[misc]
    """Gives torchtitan's trainer, or its validator, the micro-batches of a run of windows or packs.

    A batch is ``({"input": ..., "positions": ...}, labels)``, each (local_batch_size, seq_len) int64; for the newer
    interface, which counts tokens, the same rows one after another, (num_tokens_per_batch,). All batches have the full
    size. Where the last step of a run is short, rows are added whose labels are all -100, so that every rank has the
    same batches and none of the samples is lost.

    The state does not depend on the number of data-parallel ranks, so a checkpoint loads at any.

    Args:
        config: the run, and how it is read.
        dp_world_size, dp_rank: the data-parallel ranks, as torchtitan counts them.
        runtime: what else the trainer passes: ``seq_len`` and ``local_batch_size`` in 0.3, ``max_context_length`` and
            ``num_tokens_per_batch`` after it.

    Raises:
        ConfigError: the run does not suit the trainer's batches; the message does the sum.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What the trainer's configuration holds.

        Attributes:
            run: a function that makes the run; each process calls it.
            reading: how samples are read, as for a `Loader`.
            infinite: begin again at the first sample after the last one. torchtitan's validator sets it when it is
                given a number of steps. For epochs in training, give the run its ``epochs``.
            repeat: the same, by its name after 0.3.
        """

        run: Annotated[Callable[[], Run], tyro.conf.Suppress]
        reading: Annotated[Reading | None, tyro.conf.Suppress] = None
        infinite: Annotated[bool, tyro.conf.Suppress] = False
        repeat: Annotated[bool, tyro.conf.Suppress] = False

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **runtime: Any) -> None:
        self._run = run = config.run()
        seq_len = _checked_width(run)
        self._is_flat = "num_tokens_per_batch" in runtime
        micro = _micro_batch_size(seq_len, runtime)
        self._num_rows, self._seq_len = micro, seq_len
        self._micro_batches = _micro_batches_of_step(run, micro, dp_world_size)
        self._repeats = config.infinite or config.repeat
        _check_checkpoints(runtime.get("snapshot_every_n_steps"), self._micro_batches, run)
        self._loader = Loader(run, micro_batch_size=micro, ranks=Ranks(dp_rank, dp_world_size), reading=config.reading)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield batches from the current position on, to the end of the run. All processes iterate together."""
        while True:
            count = 0
            for batch in self._loader:
                count += 1
                yield self._batch(batch["input_ids"], batch["position_ids"], batch["labels"])
            nothing = torch.zeros((0, self._seq_len), dtype=torch.int64)
            for _ in range(-count % self._micro_batches):
                yield self._batch(nothing, nothing, nothing)
            if not self._repeats:
                return
            self._loader.start_at(0, allow_repeats=True)

    def _batch(
        self, tokens: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        if missing := self._num_rows - len(tokens):
            running = torch.arange(self._seq_len).expand(missing, -1)
            tokens = torch.cat([tokens, torch.zeros_like(running)])
            positions = torch.cat([positions, running])
            labels = torch.cat([labels, torch.full_like(running, IGNORED)])
        if self._is_flat:
            tokens, positions, labels = tokens.flatten(), positions.flatten(), labels.flatten()
        # Positions that run through the windows are one row, expanded; trainers move and cut them.
        return {"input": tokens, "positions": positions.contiguous()}, labels

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was yielded, the same on every rank, with the recipe of the run.

        Both are texts of JSON: torch's distributed checkpoints load the keys that they find in a fresh loader.

        Raises:
            StateError: the trainer saves within a step of the run, so its global batch is another one.
        """
        run, position = self._run, self._loader.position
        if position not in (run.schedule.begin(self._loader.step), run.length):
            raise StateError(
                f"torchtitan saves at position {position:,}, within step {self._loader.step:,} of the run: its steps"
                f" are not those of the run. Set {_batch_option(run, self._seq_len if self._is_flat else None)}"
            )
        return {_STATE: json.dumps(self._loader.state_dict()), _RECIPE: run.recipe.to_json().decode()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state; an empty one is ignored, as torchtitan expects.

        Raises:
            StateError: another loader saved it, or it belongs to another run; the message names the field that differs.
        """
        if not state_dict:
            return
        if _STATE not in state_dict:
            raise StateError(
                f"this checkpoint was saved with another data loader: it holds {sorted(state_dict)}. To begin with the"
                ' first sample all the same, set checkpoint.exclude_from_loading to ["dataloader"]'
            )
        recipe = RunRecipe.from_json(state_dict[_RECIPE].encode())
        self._loader.load_state_dict(json.loads(state_dict[_STATE]), recipe=recipe)

    def close(self) -> None:
        """End worker processes, if there are any."""
        self._loader.close()


def _checked_width(run: Any) -> int:
    """Return the tokens of a sample of the run."""
    if not isinstance(run, Run):
        raise ConfigError(f"run() returned {run!r}; torchtitan's loader takes a headrace.Run")
    shape = run.fields["input_ids"][0] if "input_ids" in run.fields else ()
    if len(shape) != 1 or shape[0] < 1:
        raise ConfigError(
            "torchtitan's batches have one length: use windows or packs (headrace.WindowDataset,"
            f" headrace.PackedSequenceDataset); the samples of this run have the fields {sorted(run.fields)}"
        )
    if run.traits.is_unshifted:
        raise ConfigError(
            'the run has labels="same", but torchtitan\'s models do not shift labels: they would learn to copy their'
            ' input. Make the dataset with labels="next", the default'
        )
    return int(shape[0])


def _micro_batch_size(seq_len: int, runtime: Mapping[str, Any]) -> int:
    """Return the rows of a batch that the trainer asks for, by either interface."""
    if "num_tokens_per_batch" not in runtime:
        if runtime["seq_len"] != seq_len:
            raise ConfigError(
                f"training.seq_len is {runtime['seq_len']:,}, the samples of the run have {seq_len:,} tokens"
            )
        return int(runtime["local_batch_size"])
    tokens, longest = runtime["num_tokens_per_batch"], runtime["max_context_length"]
    if seq_len > longest:
        raise ConfigError(f"training.max_context_length is {longest:,}, the samples of the run have {seq_len:,} tokens")
    if tokens % seq_len:
        raise ConfigError(f"a batch of {tokens:,} tokens holds no whole number of samples of {seq_len:,} tokens")
    return int(tokens // seq_len)


def _micro_batches_of_step(run: Run, micro: int, world_size: int) -> int:
    """Return the micro-batches of each rank in a full step: the trainer's gradient accumulation."""
    sizes = sorted({size for _, size in run.schedule.pieces})
    if len(sizes) > 1:
        raise ConfigError(f"torchtitan has one global batch size; that of the run changes: {sizes}")
    if sizes[0] % (micro * world_size):
        raise ConfigError(
            f"the run's global batch of {sizes[0]:,} samples is no multiple of {micro:,} samples a micro-batch x"
            f" {world_size:,} data-parallel ranks = {micro * world_size:,}"
        )
    return sizes[0] // (micro * world_size)


def _check_checkpoints(every: int | None, micro_batches: int, run: Run) -> None:
    """Refuse a trainer whose checkpoints, ``every`` so many micro-batches, would fall within steps of the run."""
    if every is not None and every % micro_batches:
        raise ConfigError(
            f"torchtitan saves every {every:,} micro-batches, and a step of the run takes {micro_batches:,}: set"
            f" {_batch_option(run, None)}"
        )


def _batch_option(run: Run, seq_len: int | None) -> str:
    """Return the trainer's option with the global batch of the run, in samples or, with ``seq_len``, in tokens."""
    size = run.schedule.pieces[0][1]
    if seq_len is None:
        return f"training.global_batch_size to {size:,}, the run's"
    return f"training.num_tokens_per_train_step to {size * seq_len:,}, the run's"
