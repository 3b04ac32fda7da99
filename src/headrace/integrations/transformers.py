"""`FromHeadrace`: trainers of Hugging Face that read a `Run`, and resume it exactly.

    Run --> Loader --> _Batches, in the model's names --> Trainer.train --> checkpoint-N/headrace_state.json, run.json
                                                               |
    eval_runs --> Loader, one each ----------------------------+
    Run of prompts --> Prompts --> _PromptBatches, for GRPO ---+

The names that begin with ``_`` and are overridden here are those that TRL's trainers override or call, too. They were
read in transformers 5.23, accelerate 1.15 and TRL 1.16.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from headrace.datasets import PreferenceDataset, PromptDataset, Run
from headrace.datasets.accounts import count_step, supervised_tokens
from headrace.datasets.dataset import CountedDataset
from headrace.errors import ConfigError, StateError
from headrace.io import atomic_write
from headrace.loader import Loader, Prompts, Ranks, Reading
from headrace.loader.attention import flatten_packed
from headrace.loader.spans import Batch
from headrace.plan import IntArray, RunRecipe
from headrace.plan.segments import IGNORED_LABEL
from headrace.tracing import save_run

STATE_FILE: Final = "headrace_state.json"
"""Name of the file, in each checkpoint folder, with the state of the loader and the recipe of the run."""

RUN_FILE: Final = "run.json"
TRAINER_FILE: Final = "trainer_state.json"
"""The last file that the Trainer writes into a checkpoint folder before it removes older ones."""

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
        def _tokenize_prompts(self, prompts: list[Any]) -> Any: ...
        def _get_output_dir(self, trial: Any) -> str: ...
        def _save_checkpoint(self, model: Any, trial: Any) -> None: ...
else:
    _Trainer = object


class FromHeadrace(_Trainer):
    """Mix this in before a trainer of Hugging Face, and give that a ``run`` in place of a dataset.

    Works with transformers' ``Trainer``, and with TRL's ``SFTTrainer``, ``DPOTrainer`` and ``GRPOTrainer``. It needs no
    ``train_dataset``, ``eval_dataset`` or ``data_collator``.

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
        for name, one in runs:
            _check_run(name, one)
        self._run = run
        self._train_batches: _TrainBatches | _PromptBatches | None = None
        self._eval_loaders: dict[str, _RunLoader] = {}
        self._eval_labels: float | None = None
        self._resumed_from: Path | None = None
        _prepare_arguments(next((one for one in (*args, kwargs.get("args")) if hasattr(one, "output_dir")), None))
        if self._eval_runs:
            kwargs["eval_dataset"] = dict(self._eval_runs)
        if any(one.__module__.startswith("trl.") for one in type(self).__mro__):
            # TRL looks at the columns of its datasets, and prepares them. It sees a single row, and trains on none.
            kwargs["train_dataset"] = _stand_in()
            if self._eval_runs:
                kwargs["eval_dataset"] = dict.fromkeys(self._eval_runs, kwargs["train_dataset"])
        super().__init__(*args, **kwargs)
        if self._eval_runs:
            self.eval_dataset = dict(self._eval_runs)
        # Nothing has to be skipped here, and with this option the trainer would lose count of micro-batches.
        self.args.ignore_data_skip = False
        if self._shifts_labels():
            for name, one in runs:
                _check_unshifted(name, one)
        self._set_max_steps()

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

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, as the trainer does. ``True`` goes on from the newest checkpoint that is complete."""
        if resume_from_checkpoint is True:
            # Without any, the trainer says so.
            resume_from_checkpoint = last_checkpoint(self.args.output_dir) or True
        self._resumed_from = None
        if resume_from_checkpoint and resume_from_checkpoint is not True:
            self._resumed_from = Path(resume_from_checkpoint)
            resume_from_checkpoint = str(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    @property
    def prompts(self) -> Prompts:
        """What became of the prompts of a training with `GRPOTrainer` so far; ``prompts.account()`` counts them.

        A prompt is finished after the last step that trains on its generation.

        Raises:
            ConfigError: the run is not of prompts, or the training has not begun.
        """
        if not isinstance(self._train_batches, _PromptBatches):
            raise ConfigError(
                "there are no prompts here: this trainer has them from the beginning of train() on, if its run is of a"
                " PromptDataset"
            )
        return self._train_batches.settled()

    def _generation_layout(self) -> _GenerationLayout | None:
        """Return how prompts are given to TRL's GRPOTrainer, if the run is of prompts."""
        if not all(isinstance(dataset, PromptDataset) for dataset in self._run.datasets):
            return None
        return _GenerationLayout(
            num_generations=self.args.num_generations,
            rows=self._train_batch_size * self.args.steps_per_generation,
            micro_steps=self.args.steps_per_generation * self.args.num_iterations,
            rank=self.args.process_index,
            world_size=self.args.world_size,
            decode=self.processing_class.decode,
        )

    def _get_prompt_loader(self, layout: _GenerationLayout) -> DataLoader[Any]:
        layout.check(self._run)
        # Every process dispatches all prompts of a generation, and takes its rows: so they keep the same account.
        prompts = Prompts(self._run, group_size=layout.num_generations, ranks=Ranks())
        accumulation = self.args.gradient_accumulation_steps
        steps = 0
        if self._resumed_from is not None:
            steps = _load_prompts(prompts, self._resumed_from, layout, accumulation)
        # The trainer counts micro-steps from 0 in each life, and with them takes its part of a generation.
        self._step = steps * accumulation
        self._buffered_inputs = None
        trained = partial(_micro_steps, self)
        self._train_batches = _PromptBatches(prompts, layout, self._step, trained)
        num_steps = self._run.num_steps
        return _RunLoader(self._train_batches, None if num_steps is None else num_steps * layout.micro_steps)

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        if all(isinstance(prompt, PromptText) for prompt in prompts):
            return [list(prompt.ids) for prompt in prompts], None, {}
        return super()._tokenize_prompts(prompts)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this process, from the checkpoint on that is resumed."""
        if (layout := self._generation_layout()) is not None:
            return self._get_prompt_loader(layout)
        ranks = self._ranks()
        loader = self._loader(self._run, self._train_batch_size, ranks)
        if self._resumed_from is not None:
            _load(loader, self._resumed_from)
        accumulation = self.args.gradient_accumulation_steps
        first = _steps_of(loader)
        together = self._train_batch_size * ranks.world_size
        _check_sizes(self._run, range(first, self.args.max_steps), self._train_batch_size, accumulation, together)
        shape = _Shape(self.model, self._run, shifts=self._shifts_labels())
        self._train_batches = _TrainBatches(
            loader, self._run, shape, first * accumulation, lambda: self.state.global_step
        )
        if _is_counted(self._run) and not (self.model_accepts_loss_kwargs or self.compute_loss_func):
            warnings.warn(
                f"{type(self.model).__name__} takes no num_items_in_batch: the Trainer averages each micro-batch, and"
                " then these. Where they hold different numbers of labels, the loss depends on how a step is divided",
                stacklevel=2,
            )
        num_steps, length = self._run.num_steps, self._run.length
        if num_steps is None or length is None:
            return _RunLoader(self._train_batches, None)
        # As the trainer counts them: every step has as many as the others, but for the last.
        last = length - self._run.schedule.begin(num_steps - 1)
        return _RunLoader(self._train_batches, (num_steps - 1) * accumulation + -(-last // together))

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
            uneven="allow" if "labels" in run.fields else "refuse",
            restart=restart,
        )

    def _ranks(self) -> Ranks:
        """Return the data-parallel rank, as accelerate numbers them: tensor and context peers are neighbours."""
        if self.get_sp_size() > 1 or self.args.n_gpu > 1:
            raise ConfigError(
                "sequence parallelism and nn.DataParallel divide batches in a way of their own: start one process for"
                " each device with torchrun or accelerate launch, and leave sp_size at 1"
            )
        peers = self.get_tp_size() * self.get_cp_size()
        return Ranks(self.args.process_index // peers, self.args.world_size // peers)

    def _shifts_labels(self) -> bool:
        return self.compute_loss_func is None and getattr(self, "_loss_shifts_labels", True)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Return the micro-batches of a step, and the labels of the whole global batch, without communication."""
        if not isinstance(self._train_batches, _TrainBatches) or not _is_counted(self._run):
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
            _check_run("the evaluation", run)
            if self._shifts_labels():
                _check_unshifted("the evaluation", run)
            if run.num_steps is None:
                raise ConfigError("an evaluation ends: use Run.validation, or pass samples= or epochs=")
            loader = self._loader(run, self.args.eval_batch_size, self._ranks(), restart=True)
            shape = _Shape(self.model, run, shifts=self._shifts_labels())
            self._eval_loaders[name] = _RunLoader(_EvalBatches(loader, run, shape, self._set_eval_labels), len(loader))
        return self._eval_loaders[name]

    def _set_eval_labels(self, mean: float | None) -> None:
        self._eval_labels = mean

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss. In an evaluation it is such that the mean over all batches is the loss of all tokens."""
        if self._eval_labels is not None:
            args = args[:1]
            kwargs["num_items_in_batch"] = self._denominator(self._eval_labels, self.args.device)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Before the trainer's own files: it removes older checkpoints at its end, and a folder with its last file is
        # then complete.
        if self.args.should_save and self._train_batches is not None:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            self._train_batches.save(folder)
        super()._save_checkpoint(model, trial)


def last_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint that is complete, and warn of newer ones that are not; None if there is none."""
    found = {int(path.name.rpartition("-")[2]): path for path in Path(folder).glob("checkpoint-*[0-9]")}
    for step in sorted(found, reverse=True):
        try:
            json.loads((found[step] / TRAINER_FILE).read_bytes())
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
    if hasattr(arguments, "dataset_kwargs"):
        arguments.dataset_kwargs = {**(arguments.dataset_kwargs or {}), "skip_prepare_dataset": True}


def _stand_in() -> Any:
    from datasets import Dataset

    texts = {"prompt": [" "], "chosen": [" "], "rejected": [" "]}
    return Dataset.from_dict({"input_ids": [[0]], "labels": [[0]], **texts})


def _is_counted(run: Run) -> bool:
    return "labels" in run.fields and all(isinstance(dataset, CountedDataset) for dataset in run.datasets)


def _check_run(name: str, run: Run) -> None:
    if not isinstance(run, Run):
        raise ConfigError(f"{name} is {run!r:.80}; expected a Run. A FramedRun has a state on each rank: not done here")
    for dataset in run.datasets:
        if isinstance(dataset, PromptDataset) and name != "run":
            raise ConfigError(f"{name}: an evaluation on prompts is not done here: leave it out of eval_runs")
        if isinstance(dataset, PreferenceDataset) and dataset.layout != "stacked":
            raise ConfigError(f"{name}: TRL's DPOTrainer takes pairs one below the other: pass layout='stacked'")


def _check_unshifted(name: str, run: Run) -> None:
    """Raise ConfigError if a dataset says that its labels are shifted."""
    for path, dataset in zip(run.paths, run.datasets, strict=True):
        if "labels" in run.fields and getattr(dataset, "labels", None) == "next":
            raise ConfigError(f"{name}{f', source {path}' if path else ''}: {_TRAP}")


_TRAP = (
    "the labels are already the next tokens, and the model shifts labels once more: it would learn to predict two"
    " tokens ahead. Pass labels='same' to the dataset: the label of a token is then the token itself"
)


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


class _Checkpoint(NamedTuple):
    """What a checkpoint folder says: the state of the data, the recipe of their run, the steps that were trained."""

    state: dict[str, Any]
    recipe: RunRecipe
    steps: int

    @classmethod
    def read(cls, folder: Path) -> _Checkpoint:
        try:
            saved = json.loads((folder / STATE_FILE).read_bytes())
            trainer = json.loads((folder / TRAINER_FILE).read_bytes())
        except FileNotFoundError as error:
            raise StateError(
                f"{folder} has no {Path(error.filename).name}: it was saved by a trainer without FromHeadrace, or is"
                " not complete. Resume another checkpoint"
            ) from error
        except ValueError as error:
            raise StateError(f"{folder} is damaged: {error}") from error
        recipe = RunRecipe.from_json(json.dumps(saved["recipe"]))
        return cls(saved["state"], recipe, int(trainer["global_step"]))


def _load(loader: Loader, folder: Path) -> None:
    """Continue from a checkpoint."""
    checkpoint = _Checkpoint.read(folder)
    loader.load_state_dict(checkpoint.state, recipe=checkpoint.recipe)
    steps = _steps_of(loader)
    if loader.position != loader.run.length and loader.position != loader.run.schedule.begin(steps):
        raise StateError(
            f"{folder}: the run ended within step {steps:,} when this was saved, and is longer now: the rest of that"
            " step would be a step of its own to the trainer. Resume an earlier checkpoint, or pass drop_last=True to"
            " runs that are made longer"
        )
    if steps != checkpoint.steps:
        raise StateError(
            f"{folder}: the trainer has done {checkpoint.steps:,} steps, and the data are after {steps:,}: these are"
            " the files of two checkpoints"
        )


def _load_prompts(prompts: Prompts, folder: Path, layout: _GenerationLayout, accumulation: int) -> int:
    """Continue from a checkpoint, and return the steps that the trainer has done."""
    checkpoint = _Checkpoint.read(folder)
    prompts.load_state_dict(checkpoint.state, recipe=checkpoint.recipe)
    generations = checkpoint.steps * accumulation // layout.micro_steps
    settled = prompts.account().num_settled
    if settled != generations * layout.num_prompts:
        raise StateError(
            f"{folder}: the trainer has done {checkpoint.steps:,} steps, which use up {generations:,} generations of"
            f" {layout.num_prompts:,} prompts, and {settled:,} prompts are finished: these are the files of two"
            " checkpoints, or the arguments that divide steps into generations have changed"
        )
    return checkpoint.steps


def _save(folder: Path, run: Run, state: Mapping[str, Any], position: int) -> None:
    """Write the state of the data after the steps that the trainer has completed, and the run."""
    for name in (TRAINER_FILE, RUN_FILE):
        # Those of an earlier life that got as far. Without the first, the folder is not complete.
        (folder / name).unlink(missing_ok=True)
    content = {"state": state, "recipe": json.loads(run.recipe.to_json())}
    atomic_write(folder / STATE_FILE, json.dumps(content, indent=2).encode() + b"\n")
    save_run(run, folder / RUN_FILE, position=position)


def _steps_of(loader: Loader) -> int:
    """Return the number of steps before the position of a loader; the last step of a run may be short."""
    num_steps = loader.run.num_steps
    return num_steps if num_steps is not None and loader.position == loader.run.length else loader.step


class _Shape:
    """Makes of a micro-batch the arguments of the model."""

    def __init__(self, model: Any, run: Run, *, shifts: bool) -> None:
        while hasattr(model, "get_base_model"):
            model = model.get_base_model()
        self._taken = set(inspect.signature(model.forward).parameters)
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None) or ""
        self._is_flat = run.traits.is_packed and "flash" in attention
        self._run = run
        self._unchecked = shifts

    def __call__(self, batch: Batch) -> Batch:
        if self._unchecked and len(batch["sample_positions"]):
            _check_labels(batch)
            self._unchecked = False
        if not len(batch["sample_positions"]):
            batch = _without_labels(batch)
        elif self._is_flat:
            return dict(flatten_packed(batch, is_unshifted=True))
        if "completion_mask" in batch:
            return {name: batch[name] for name in ("input_ids", "attention_mask", "completion_mask")}
        # With an attention mask Transformers looks for no segments, and the positions are those that it counts itself.
        dropped = {"position_ids"} if "attention_mask" in batch else set()
        return {name: value for name, value in batch.items() if name in self._taken - dropped}


def _check_labels(batch: Batch) -> None:
    """Raise ConfigError if labels are the next tokens, whatever made them."""
    ids, labels = batch.get("input_ids"), batch.get("labels")
    if not isinstance(ids, Tensor) or not isinstance(labels, Tensor) or ids.shape != labels.shape:
        return
    has_label = labels != IGNORED_LABEL
    is_same = bool((labels == ids)[has_label].all())
    is_next = bool((labels[:, :-1] == ids[:, 1:])[has_label[:, :-1]].all())
    if is_next and not is_same:
        raise ConfigError(f"the first batch: {_TRAP}")


def _without_labels(batch: Batch) -> Batch:
    """Return a row that trains nothing, for the rank that has no sample at the end of an uneven step."""
    width = max(2, batch["input_ids"].shape[-1])
    ids = torch.zeros(1, width, dtype=torch.int64)
    made = {"input_ids": ids, "labels": torch.full_like(ids, IGNORED_LABEL), "attention_mask": torch.ones_like(ids)}
    made["position_ids"] = torch.arange(width)[None]
    return {name: value for name, value in made.items() if name in batch}


class _Batches(IterableDataset[Any]):
    """Micro-batches of a run. Its ``len`` is the number of samples of the run, which the trainer reports."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __len__(self) -> int:
        if self._run.length is None:
            raise TypeError("this run is endless: it has no len()")
        return self._run.length


class _TrainBatches(_Batches):
    """The batches of the training, with the state after each step.

    Args:
        loader: at the position where training begins or goes on.
        run: its run.
        shape: makes of a micro-batch the arguments of the model.
        skipped: micro-batches before that, which the trainer skips by iterating over them. They are not read.
        trained: returns the steps of the run that the trainer has completed.
    """

    def __init__(
        self, loader: Loader, run: Run, shape: Callable[[Batch], Batch], skipped: int, trained: Callable[[], int]
    ) -> None:
        super().__init__(run)
        self._loader = loader
        self._shape = shape
        self._skipped = skipped
        self._trained = trained
        self._states = {_steps_of(loader): loader.state_dict()}
        self._labels: dict[int, int] = {}

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._skipped):
            yield None
        step = _steps_of(self._loader)
        for batch in self._loader:
            if "step_supervised_tokens" in batch:
                self._labels[step] = batch["step_supervised_tokens"]
            step = self._noted(step)
            yield self._shape(batch)

    def _noted(self, step: int) -> int:
        """Keep the state if a batch was the last one of its step, and return the step of the next batch."""
        if (after := _steps_of(self._loader)) != step:
            # Whatever was fetched ahead of the trainer, the state of each step that it may still save is here.
            trained = self._trained()
            self._states = {kept: state for kept, state in self._states.items() if kept >= trained}
            self._states[after] = self._loader.state_dict()
        return after

    def labels_of(self, step: int) -> int:
        """Return the labels of all ranks in a step whose batches were fetched."""
        if step not in self._labels:
            return count_step(self._run, step)["supervised_tokens"]
        return self._labels.pop(step)

    def save(self, folder: Path) -> None:
        """Write the state after the steps that the trainer has completed, and the run."""
        step = self._trained()
        if step not in self._states:
            raise StateError(
                f"the trainer saves step {step:,}, and the steps of the run that it has had are {sorted(self._states)}:"
                " was global_step changed, or another loader used?"
            )
        state = self._states[step]
        _save(folder, self._run, state, state["position"])


class PromptText(str):
    """The text of a prompt, for rewards and logs, and ``ids``, its tokens, which nobody has to make again."""

    ids: list[int]

    def __new__(cls, text: str, ids: list[int]) -> PromptText:  # noqa: D102
        made = super().__new__(cls, text)
        made.ids = ids
        return made

    def __getnewargs__(self) -> tuple[str, list[int]]:  # type: ignore[override]
        return str(self), self.ids


class _GenerationLayout(NamedTuple):
    """How TRL's GRPOTrainer takes the prompts of a generation: each ``num_generations`` times, as rows for all ranks.

    With ``num_generations=2``, three rows a rank and the prompts a, b, c:   rank 0: a a b   rank 1: b c c

    A generation is used in ``micro_steps`` micro-steps, and each of them asks for it anew.
    """

    num_generations: int
    rows: int
    micro_steps: int
    rank: int
    world_size: int
    decode: Callable[[list[int]], str]

    @property
    def num_prompts(self) -> int:
        """Prompts of a generation."""
        return self.rows * self.world_size // self.num_generations

    def check(self, run: Run) -> None:
        """Raise ConfigError unless each step of the run is a generation."""
        all_rows = self.rows * self.world_size
        sizes = {size for _, size in run.schedule.pieces}
        if {size * self.num_generations for size in sizes} != {all_rows}:
            raise ConfigError(
                f"the run has global batches of {sorted(sizes)} prompts, and a generation has {all_rows:,} rows"
                f" (per_device_train_batch_size x steps_per_generation x processes) of {self.num_generations}"
                f" completions for each prompt: it takes {all_rows / self.num_generations:g} prompts"
            )
        if run.length is not None and run.length % self.num_prompts:
            raise ConfigError("the last generation would have too few prompts: pass drop_last=True to the run")

    def rows_of(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of this rank."""
        rows = []
        for row in range(self.rank * self.rows, (self.rank + 1) * self.rows):
            prompt = row // self.num_generations
            ids = batch["input_ids"][prompt][batch["attention_mask"][prompt] == 1].tolist()
            rows.append({**batch["columns"][prompt], "prompt": PromptText(self.decode(ids), ids)})
        return rows


def _micro_steps(trainer: Any) -> int:
    """Return the micro-steps of the steps that a trainer has completed."""
    done: int = trainer.state.global_step * trainer.args.gradient_accumulation_steps
    return done


class _InHand(NamedTuple):
    """The prompts of a generation that is not used up, and the micro-step that is the last one to use it, plus 1."""

    positions: IntArray
    used_up: int


class _PromptBatches(_Batches):
    """Rows of prompts, one list for each micro-step; and each prompt's fate.

    Args:
        prompts: dispatches them, from where training begins or goes on.
        layout: how they are given to the trainer.
        skipped: micro-steps before that, which the trainer skips by iterating over them. The generation that the last
            of them began is dispatched again, and used for the rest of its micro-steps.
        trained: returns the micro-steps whose optimiser steps the trainer has completed.
    """

    def __init__(self, prompts: Prompts, layout: _GenerationLayout, skipped: int, trained: Callable[[], int]) -> None:
        super().__init__(prompts.run)
        self._prompts = prompts
        self._layout = layout
        self._skipped = skipped
        self._trained = trained
        self._in_hand: deque[_InHand] = deque()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._skipped):
            yield None
        layout = self._layout
        begin = self._skipped - self._skipped % layout.micro_steps
        first = self._skipped
        while taken := self._prompts.take(layout.num_prompts):
            begin += layout.micro_steps
            self._in_hand.append(_InHand(np.array([one.position for one in taken], dtype=np.int64), begin))
            rows = layout.rows_of(self._run.collate([prompt.sample for prompt in taken]))
            for _ in range(first, begin):
                yield rows
            first = begin

    def settled(self) -> Prompts:
        """Finish the prompts of the generations that are used up, and return the account of all."""
        trained = self._trained()
        while self._in_hand and self._in_hand[0].used_up <= trained:
            self._prompts.finish(self._in_hand.popleft().positions)
        return self._prompts

    def save(self, folder: Path) -> None:
        """Write the state after the steps that the trainer has completed: what is in hand is dispatched again."""
        state = self.settled().state_dict()
        _save(folder, self._run, state, state["run"]["position"])


class _EvalBatches(_Batches):
    """The batches of an evaluation. While they are iterated, ``tell`` knows the mean number of labels of a batch.

    The trainer averages the losses of batches and ranks with equal weights. If each is the sum of its token losses
    divided by that mean, the average is the sum of all token losses divided by the number of all labels.
    """

    def __init__(
        self, loader: Loader, run: Run, shape: Callable[[Batch], Batch], tell: Callable[[float | None], None]
    ) -> None:
        super().__init__(run)
        self._loader = loader
        self._shape = shape
        self._tell = tell
        self._mean: float | None = None
        if _is_counted(run) and run.num_steps is not None:
            self._mean = sum(count for _, count in supervised_tokens(run, 0, run.num_steps)) / len(loader)

    def __iter__(self) -> Iterator[Any]:
        self._tell(self._mean)
        try:
            yield from map(self._shape, self._loader)
        finally:
            self._tell(None)


def _as_it_is(batch: Any) -> Any:
    return batch


class _RunLoader(DataLoader[Any]):
    """The DataLoader that a trainer gets. accelerate does not see it, and so does not shard or dispatch it."""

    def __init__(self, batches: _Batches, num_batches: int | None) -> None:
        # Its own generator, so that the state of torch's does not depend on how often loaders are iterated.
        super().__init__(batches, batch_size=None, collate_fn=_as_it_is, generator=torch.Generator())
        self._num_batches = num_batches

    def __len__(self) -> int:
        if self._num_batches is None:
            raise TypeError("this run is endless: it has no len()")
        return self._num_batches
