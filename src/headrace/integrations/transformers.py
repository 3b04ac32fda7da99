"""`FromHeadrace`: trainers of Hugging Face that read a `Run`, and resume it exactly.

    Run --> Loader --> TrainBatches --> Trainer.train --> checkpoint-N/headrace_state.json, run.json
                                              |
    eval_runs --> Loader --> EvalBatches -----+
    Run of prompts --> Prompts --> PromptBatches, for GRPO

The names that begin with ``_`` and are overridden here are those that TRL's trainers override or call, too. They were
read in transformers 5.23, accelerate 1.15 and TRL 1.16.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from headrace.datasets import PreferenceDataset, PromptDataset, RecordDataset, Run, SFTDataset
from headrace.errors import ConfigError
from headrace.integrations.transformers_batches import (
    SHIFTED_TWICE,
    TRAINER_FILE,
    EvalBatches,
    GenerationLayout,
    ModelArguments,
    PromptBatches,
    PromptMessages,
    PromptText,
    RunDataLoader,
    TrainBatches,
    answer_arguments,
    is_counted,
    load_checkpoint,
    load_prompts,
    pair_arguments,
    steps_of,
)
from headrace.io import read_small
from headrace.loader import Loader, Prompts, Ranks, Reading

if TYPE_CHECKING:

    class _Trainer:
        """What `FromHeadrace` uses of the trainer that it is mixed into."""

        args: Any
        state: Any
        model: Any
        accelerator: Any
        eval_dataset: Any
        compute_loss_func: Any
        model_accepts_loss_kwargs: bool
        processing_class: Any
        _train_batch_size: int
        _step: int
        _buffered_inputs: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any: ...
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any: ...
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any: ...
        def compute_loss(self, model: Any, inputs: Any, **kwargs: Any) -> Any: ...
        def get_tp_size(self) -> int: ...
        def get_cp_size(self) -> int: ...
        def get_sp_size(self) -> int: ...
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any: ...
        def _tokenize_prompts(self, prompts: list[Any]) -> Any: ...
        def _get_output_dir(self, trial: Any) -> str: ...
        def _save_checkpoint(self, model: Any, trial: Any) -> None: ...
else:
    _Trainer = object


class Checkpointed(_Trainer):
    """What keeps the place of the data in the checkpoints of a trainer, for `FromHeadrace` and `headrace.exact`."""

    _train_batches: TrainBatches | PromptBatches | None = None
    _resumed_from: Path | None = None

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, as the trainer does. ``True`` goes on from the newest checkpoint that is complete."""
        # Nothing has to be skipped here, and with this option the trainer would lose count of micro-batches.
        self.args.ignore_data_skip = False
        if resume_from_checkpoint is True:
            # Without any, the trainer says so.
            resume_from_checkpoint = last_checkpoint(self.args.output_dir) or True
        self._resumed_from = None
        if resume_from_checkpoint and resume_from_checkpoint is not True:
            self._resumed_from = Path(resume_from_checkpoint)
            resume_from_checkpoint = str(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Before the trainer's own files: it removes older checkpoints at its end, and a folder with its last file is
        # then complete.
        if self.args.should_save and self._train_batches is not None:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            self._train_batches.save(folder)
        super()._save_checkpoint(model, trial)

    def _ranks(self) -> Ranks:
        """Return the data-parallel rank, as accelerate numbers them: tensor and context peers are neighbours."""
        if self.get_sp_size() > 1 or self.args.n_gpu > 1:
            raise ConfigError(
                "sequence parallelism and nn.DataParallel divide batches in a way of their own: start one process for"
                " each device with torchrun or accelerate launch, and leave sp_size at 1"
            )
        peers = self.get_tp_size() * self.get_cp_size()
        return Ranks(self.args.process_index // peers, self.args.world_size // peers)


class FromHeadrace(Checkpointed):
    """Mix this in before a trainer of Hugging Face, and give that a ``run`` in place of a dataset.

    Works with transformers' ``Trainer``, and with TRL's ``SFTTrainer``, ``DPOTrainer``, ``KTOTrainer``,
    ``RewardTrainer`` and ``GRPOTrainer``. It needs no ``train_dataset``, ``eval_dataset`` or ``data_collator``.

    - **Batches** are those of a `Loader` over the run, with only the fields that the model takes. Nothing shards,
      shuffles or tokenises them again. Packs become one row without pads for flash attention, with ``cu_seq_lens``;
      for other attention they stay rows whose ``position_ids`` restart.
    - **Checkpoints** hold the state of the data after the last step, ``headrace_state.json``, and the run,
      ``run.json``. ``train(resume_from_checkpoint=...)`` goes on from them without reading anything twice, on any
      number of processes. ``True`` takes the newest folder that is complete.
    - **The loss** of a step is divided by the labels of the whole global batch, which the run knows.
    - **Prompts**, in ``GRPOTrainer``, have exactly one fate each: see ``prompts``.
    - **Steps**: ``max_steps`` is the length of the run, unless the arguments give less. One epoch of the trainer is the
      whole run.

    Args:
        *args: passed on to the trainer, as are ``**kwargs``.
        run: what is trained on, with ``labels="same"``, since these models shift labels themselves.
        eval_runs: name -> run for ``evaluate``, each a `Run.validation`, say. The loss of a name is
            ``eval_NAME_loss``: all token losses of the run, divided by the number of its labels.

    Raises:
        ConfigError: the labels of a run are shifted already; the sizes in the arguments do not make the global batch;
            or the arguments ask for what this cannot do. Sizes are checked when training begins.

    Example:
        class MyTrainer(FromHeadrace, Trainer): ...

        trainer = MyTrainer(model=model, args=arguments, run=run, eval_runs={"code": validation})
        trainer.train(resume_from_checkpoint=True)
    """

    def __init__(self, *args: Any, run: Run, eval_runs: Mapping[str, Run] | None = None, **kwargs: Any) -> None:
        self._eval_runs = dict(eval_runs or {})
        runs = [("run", run), *((f"eval_runs[{name!r}]", one) for name, one in self._eval_runs.items())]
        trl = {one.__name__ for one in type(self).__mro__ if one.__module__.startswith("trl.")}
        self._kind = next((name for name in _NEEDED if name in trl), "")
        for name, one in runs:
            _check_run(name, one, self._kind)
        self._run = run
        self._eval_loaders: dict[str, RunDataLoader] = {}
        self._eval_labels: float | None = None
        _prepare_arguments(next((one for one in (*args, kwargs.get("args")) if hasattr(one, "output_dir")), None))
        if self._eval_runs:
            kwargs["eval_dataset"] = dict(self._eval_runs)
        if trl:
            # TRL looks at the columns of its datasets. It sees a single row, and trains on none.
            self._stand_in = kwargs["train_dataset"] = _stand_in()
            if self._eval_runs:
                kwargs["eval_dataset"] = dict.fromkeys(self._eval_runs, self._stand_in)
        super().__init__(*args, **kwargs)
        if self._eval_runs:
            self.eval_dataset = dict(self._eval_runs)
        for name, one in runs:
            self._check_rows(name, one)
        self._set_max_steps()

    def _check_rows(self, name: str, run: Run) -> None:
        if self._shifts_labels():
            _check_unshifted(name, run)
        if self._kind == "RewardTrainer":
            _check_pads(name, run, self.processing_class.pad_token_id)

    def _set_max_steps(self) -> None:
        num_steps = self._run.num_steps
        if num_steps is not None and (layout := self._generation_layout()) is not None:
            num_steps = num_steps * layout.micro_steps // self.args.gradient_accumulation_steps
        wanted = self.args.max_steps
        if num_steps is None and wanted <= 0:
            raise ConfigError("the run is endless: pass max_steps in the arguments, or samples= or epochs= to the run")
        if num_steps is not None and wanted > num_steps:
            raise ConfigError(
                f"max_steps is {wanted:,}, and the run ends after {num_steps:,} steps: leave max_steps out, or make the"
                " run longer with samples= or epochs=, which keeps the steps that it has"
            )
        if wanted <= 0:
            self.args.max_steps = num_steps

    @property
    def prompts(self) -> Prompts:
        """What became of the prompts of a training with `GRPOTrainer` so far; ``prompts.account()`` counts them.

        A prompt is finished after the last step that trains on its generation.

        Raises:
            ConfigError: the run is not of prompts, or the training has not begun.
        """
        if not isinstance(self._train_batches, PromptBatches):
            raise ConfigError(
                "there are no prompts here: this trainer has them from the beginning of train() on, if its run is of a"
                " PromptDataset"
            )
        return self._train_batches.settled()

    def _generation_layout(self) -> GenerationLayout | None:
        """Return how prompts are given to TRL's GRPOTrainer, if the run is of prompts."""
        if not all(isinstance(dataset, PromptDataset) for dataset in self._run.datasets):
            return None
        return GenerationLayout(
            num_generations=self.args.num_generations,
            rows=self._train_batch_size * self.args.steps_per_generation,
            micro_steps=self.args.steps_per_generation * self.args.num_iterations,
            rank=self.args.process_index,
            world_size=self.args.world_size,
            decode=self.processing_class.decode,
        )

    def _get_prompt_loader(self, layout: GenerationLayout) -> DataLoader[Any]:
        layout.check(self._run)
        # Every process dispatches all prompts of a generation, and takes its rows: so they keep the same account.
        prompts = Prompts(self._run, group_size=layout.num_generations, ranks=Ranks())
        accumulation = self.args.gradient_accumulation_steps
        steps = 0
        if self._resumed_from is not None:
            steps = load_prompts(prompts, self._resumed_from, layout, accumulation)
        # The trainer counts micro-steps from 0 in each life, and with them takes its part of a generation.
        self._step = steps * accumulation
        self._buffered_inputs = None
        trained = partial(_micro_steps, self)
        self._train_batches = PromptBatches(prompts, layout, self._step, trained)
        num_steps = self._run.num_steps
        return RunDataLoader(self._train_batches, None if num_steps is None else num_steps * layout.micro_steps)

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        # The tools of a trainer are no part of the stored tokens: TRL writes the messages with them.
        has_tools = getattr(self, "tools", None) or getattr(self, "environment_factories", None)
        kinds = PromptText if has_tools else PromptText | PromptMessages
        if all(isinstance(prompt, kinds) for prompt in prompts):
            return [list(prompt.ids) for prompt in prompts], None, {}
        return super()._tokenize_prompts(prompts)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        # TRL would tokenise a run, or the row that stands for it.
        if isinstance(dataset, Run) or dataset is self._stand_in:
            return dataset
        return super()._prepare_dataset(dataset, *args, **kwargs)

    def _shape(self, run: Run) -> Callable[[Any], Any]:
        """Return what makes of a micro-batch the arguments of the trainer or its model."""
        if self._kind == "RewardTrainer":
            return pair_arguments
        if self._kind == "KTOTrainer":
            limits = [one.collation.max_length or 0 for one in run.datasets if isinstance(one, RecordDataset)]
            longest = max(limits) if all(limits) and limits else None
            return partial(answer_arguments, with_kl=getattr(self, "calculate_KL", True), max_length=longest)
        return ModelArguments(self.model, run, shifts=self._shifts_labels())

    def _has_token_loss(self, run: Run) -> bool:
        """Return whether the loss is a mean over labels; KTO's is one over answers."""
        return "labels" in run.fields and self._kind != "KTOTrainer"

    def _counts_labels(self) -> bool:
        return self._has_token_loss(self._run) and is_counted(self._run)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this process, from the checkpoint on that is resumed."""
        if (layout := self._generation_layout()) is not None:
            return self._get_prompt_loader(layout)
        ranks = self._ranks()
        loader = self._loader(self._run, self._train_batch_size, ranks)
        if self._resumed_from is not None:
            load_checkpoint(loader, self._resumed_from)
        accumulation = self.args.gradient_accumulation_steps
        first = steps_of(loader)
        together = self._train_batch_size * ranks.world_size
        _check_sizes(self._run, range(first, self.args.max_steps), self._train_batch_size, accumulation, together)
        self._train_batches = TrainBatches(
            loader, self._shape(self._run), first * accumulation, lambda: self.state.global_step
        )
        if self._counts_labels() and not (self.model_accepts_loss_kwargs or self.compute_loss_func):
            warnings.warn(
                f"{type(self.model).__name__} takes no num_items_in_batch: the Trainer averages each micro-batch, and"
                " then these. Where they hold different numbers of labels, the loss depends on how a step is divided",
                stacklevel=2,
            )
        num_steps, length = self._run.num_steps, self._run.length
        if num_steps is None or length is None:
            return RunDataLoader(self._train_batches, None)
        # As the trainer counts them: every step has as many as the others, but for the last.
        last = length - self._run.schedule.begin(num_steps - 1)
        return RunDataLoader(self._train_batches, (num_steps - 1) * accumulation + -(-last // together))

    def _loader(self, run: Run, micro_batch_size: int, ranks: Ranks, *, restart: bool = False) -> Loader:
        workers = self.args.dataloader_num_workers
        pin = None if self.args.dataloader_pin_memory else False
        reading = Reading(num_workers=workers, pin_memory=pin) if workers else Reading(pin_memory=pin)
        return Loader(
            run,
            micro_batch_size=micro_batch_size,
            ranks=ranks,
            reading=reading,
            # A micro-batch without samples can be made up only where labels say that nothing is trained on.
            uneven="allow" if self._has_token_loss(run) else "refuse",
            restart=restart,
        )

    def _shifts_labels(self) -> bool:
        return self.compute_loss_func is None and getattr(self, "_loss_shifts_labels", True)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Return the micro-batches of a step, and the labels of the whole global batch, without communication."""
        if not isinstance(self._train_batches, TrainBatches) or not self._counts_labels():
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = list(islice(epoch_iterator, num_batches))
        if not batches:
            return batches, None
        return batches, self._denominator(self._train_batches.labels_of(self.state.global_step), device)

    def _denominator(self, num_labels: float, device: Any) -> Tensor:
        # The trainer multiplies the loss by the number of ranks if this is set, since gradients are averaged over them.
        scale = 1 if self.args.average_tokens_across_devices else self.args.world_size // self.get_tp_size()
        return torch.tensor(num_labels / scale, device=device)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the batches of an evaluation run, by its name or the run itself; of other datasets as the trainer."""
        run = self._eval_runs.get(eval_dataset) if isinstance(eval_dataset, str) else eval_dataset
        if not isinstance(run, Run):
            return super().get_eval_dataloader(eval_dataset)
        name = eval_dataset if isinstance(eval_dataset, str) else run.recipe.digest().hex()
        if name not in self._eval_loaders:
            _check_run("the evaluation", run, self._kind)
            self._check_rows("the evaluation", run)
            if run.num_steps is None:
                raise ConfigError("an evaluation ends: use Run.validation, or pass samples= or epochs=")
            loader = self._loader(run, self.args.eval_batch_size, self._ranks(), restart=True)
            batches = EvalBatches(loader, run, self._shape(run), self._set_eval_labels)
            self._eval_loaders[name] = RunDataLoader(batches, len(loader))
        return self._eval_loaders[name]

    def _set_eval_labels(self, mean: float | None) -> None:
        self._eval_labels = mean

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss. In an evaluation it is such that the mean over all batches is the loss of all tokens."""
        if self._eval_labels is not None:
            args = args[:1]
            kwargs["num_items_in_batch"] = self._denominator(self._eval_labels, self.args.device)
        return super().compute_loss(model, inputs, *args, **kwargs)


def last_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint that is complete, and warn of newer ones that are not; None if there is none."""
    found = {int(path.name.rpartition("-")[2]): path for path in Path(folder).glob("checkpoint-*[0-9]")}
    for step in sorted(found, reverse=True):
        try:
            json.loads(read_small(found[step] / TRAINER_FILE))
        except (OSError, ValueError):
            warnings.warn(
                f"{found[step]} is not complete: was it killed while it was saved? It is left out", stacklevel=3
            )
            continue
        return found[step]
    return None


def _prepare_arguments(arguments: Any) -> None:
    if getattr(arguments, "precompute_ref_log_probs", False):
        raise ConfigError(
            "precompute_ref_log_probs computes over a dataset before training, and there is none here: leave it out,"
            " and the reference model is run in each step"
        )


def _stand_in() -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [" "]})


_PAIRS = "PreferenceDataset(store, layout='stacked')"
_NEEDED: Final = {
    "DPOTrainer": ("completion_mask", _PAIRS),
    "RewardTrainer": ("completion_mask", _PAIRS),
    "KTOTrainer": ("label", "SFTDataset(store, labels='same') of a store with labels, which the layout kto makes"),
}
"""Trainers of TRL, the field that they need, and the dataset that has it."""


def _check_run(name: str, run: Run, kind: str) -> None:
    if not isinstance(run, Run):
        raise ConfigError(f"{name} is {run!r:.80}; expected a Run. A FramedRun has a state on each rank: not done here")
    for dataset in run.datasets:
        if isinstance(dataset, PromptDataset) and name != "run":
            raise ConfigError(f"{name}: an evaluation on prompts is not done here: leave it out of eval_runs")
        if isinstance(dataset, PreferenceDataset) and dataset.layout != "stacked":
            raise ConfigError(f"{name}: TRL's trainers take pairs one below the other: pass layout='stacked'")
        if isinstance(dataset, SFTDataset) and "label" in dataset.fields and kind != "KTOTrainer":
            raise ConfigError(
                f"{name}: the answers of {dataset.store.path} have labels that say whether they are wanted, and this"
                " trainer would train on all of them alike: use TRL's KTOTrainer, or pass label_key=None to the dataset"
            )
    field, dataset_of = _NEEDED.get(kind, ("", ""))
    if field and field not in run.fields:
        raise ConfigError(
            f"{name}: TRL's {kind} needs {field!r}, and the samples of this run have {', '.join(run.fields)}: use"
            f" {dataset_of}"
        )


def _check_pads(name: str, run: Run, pad: int) -> None:
    """Raise ConfigError unless rows are padded with the token by which a reward model finds the end of a row."""
    for dataset in run.datasets:
        if isinstance(dataset, RecordDataset) and dataset.collation.padding_idx != pad:
            raise ConfigError(
                f"{name}: rows are padded with the token {dataset.collation.padding_idx}, and the model takes the score"
                f" of a row at its last token other than {pad}, which would be a pad: pass Collation(padding_idx={pad})"
                " to the dataset"
            )


def _check_unshifted(name: str, run: Run) -> None:
    """Raise ConfigError if a dataset says that its labels are shifted."""
    for path, dataset in zip(run.paths, run.datasets, strict=True):
        if "labels" in run.fields and getattr(dataset, "labels", None) == "next":
            raise ConfigError(f"{name}{f', source {path}' if path else ''}: {SHIFTED_TWICE}")


def _check_sizes(run: Run, steps: range, micro_batch_size: int, accumulation: int, together: int) -> None:
    """Raise ConfigError unless the trainer's sizes make the global batches of these steps."""
    firsts = [first for first, _ in run.schedule.pieces]
    sizes = sorted(
        size
        for (first, size), end in zip(run.schedule.pieces, [*firsts[1:], steps.stop], strict=True)
        if max(first, steps.start) < min(end, steps.stop)
    )
    needed = [-(-size // together) for size in sizes]
    if set(needed) <= {accumulation}:
        return
    world_size = together // micro_batch_size
    asked = (
        f"per_device_train_batch_size {micro_batch_size} x gradient_accumulation_steps {accumulation} x {world_size}"
        f" data-parallel processes = {together * accumulation:,} samples a step"
    )
    if needed[0] != needed[-1]:
        raise ConfigError(
            f"the global batch of the run goes from {sizes[0]:,} to {sizes[-1]:,} samples, and the Trainer has one"
            f" number of micro-batches for all steps ({asked}): train each part with its own arguments and max_steps,"
            " each from the last checkpoint of the one before, or use a run with one global batch size"
        )
    empty = needed[0] * together - sizes[0]
    raise ConfigError(
        f"the run has global batches of {sizes[0]:,} samples, and the trainer would take {asked}: pass"
        f" gradient_accumulation_steps={needed[0]} ({micro_batch_size} x {needed[0]} x {world_size} ="
        f" {needed[0] * together:,}{f', of which the last {empty:,} places stay empty' if empty else ''}), or another"
        " per_device_train_batch_size"
    )


def _micro_steps(trainer: Any) -> int:
    """Return the micro-steps of the steps that a trainer has completed."""
    done: int = trainer.state.global_step * trainer.args.gradient_accumulation_steps
    return done
