"""What trainers of Hugging Face iterate over, and what they save of it: see `FromHeadrace`.

`TrainBatches` and `EvalBatches` yield micro-batches in the names of the model, or of TRL's trainer, and `PromptBatches`
the rows of prompts that TRL's GRPOTrainer takes. The first and the last keep the state of the data after each step, for
the checkpoint of it.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

import headrace.loader
from headrace.datasets import CountedDataset, Run, count_step
from headrace.datasets.accounts import supervised_tokens
from headrace.errors import ConfigError, InputError, StateError
from headrace.io import atomic_write, read_small
from headrace.loader import Loader, Prompts, flatten_packed
from headrace.loader.spans import Batch
from headrace.plan import IntArray, RunRecipe
from headrace.plan.segments import IGNORED_LABEL
from headrace.tracing import save_run

STATE_FILE: Final = "headrace_state.json"
"""Name of the file, in each checkpoint folder, with the state of the loader and the recipe of the run."""

RUN_FILE: Final = "run.json"
TRAINER_FILE: Final = "trainer_state.json"
"""The last file that the Trainer writes into a checkpoint folder before it removes older ones."""

SHIFTED_TWICE: Final = (
    "the labels are already the next tokens, and the model shifts labels once more: it would learn to predict two"
    " tokens ahead. Pass labels='same' to the dataset: the label of a token is then the token itself"
)


def is_counted(run: Run) -> bool:
    """Return whether the run counts the labels of its steps."""
    return "labels" in run.fields and all(isinstance(dataset, CountedDataset) for dataset in run.datasets)


class Checkpoint(NamedTuple):
    """What a checkpoint folder says: the steps that were trained, the state of the data, the recipe of their run."""

    steps: int
    state: dict[str, Any]
    recipe: RunRecipe | None
    """None if the data are no run, but those of a `headrace.DataLoader`."""

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """Read a folder. Raises StateError without a state."""
        steps, saved = int(saved_in(folder, TRAINER_FILE)["global_step"]), saved_in(folder, STATE_FILE)
        recipe = RunRecipe.from_json(json.dumps(saved["recipe"])) if "recipe" in saved else None
        return cls(steps, saved["state"], recipe)


def saved_in(folder: Path, name: str) -> Any:
    """Return what a file of a checkpoint says. Raises StateError if it is not there, or damaged."""
    try:
        return json.loads(read_small(folder / name))
    except FileNotFoundError as error:
        raise StateError(
            f"{folder} has no {name}: it was saved by a trainer without Headrace, or is not complete. Resume another"
            " checkpoint"
        ) from error
    except ValueError as error:
        raise StateError(f"{folder} is damaged: {error}") from error


def load_checkpoint(loader: Loader, folder: Path) -> None:
    """Continue from a checkpoint."""
    checkpoint = Checkpoint.read(folder)
    loader.load_state_dict(checkpoint.state, recipe=checkpoint.recipe)
    steps = steps_of(loader)
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


def load_prompts(prompts: Prompts, folder: Path, layout: GenerationLayout, accumulation: int) -> int:
    """Continue from a checkpoint, and return the steps that the trainer has done."""
    checkpoint = Checkpoint.read(folder)
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


def _save(folder: Path, run: Run | None, state: Mapping[str, Any], position: int) -> None:
    """Write the state of the data after the steps that the trainer has completed, and the run, if they are of one."""
    for name in (TRAINER_FILE, RUN_FILE):
        # Those of an earlier life that got as far. Without the first, the folder is not complete.
        (folder / name).unlink(missing_ok=True)
    recipe = {} if run is None else {"recipe": json.loads(run.recipe.to_json())}
    atomic_write(folder / STATE_FILE, json.dumps({"state": state} | recipe, indent=2).encode() + b"\n")
    if run is not None:
        save_run(run, folder / RUN_FILE, position=position)


def steps_of(loader: Loader | headrace.loader.DataLoader) -> int:
    """Return the number of steps before the position of a loader; the last step of a run may be short."""
    if not isinstance(loader, Loader):
        return loader.step
    num_steps = loader.run.num_steps
    return num_steps if num_steps is not None and loader.position == loader.run.length else loader.step


class ModelArguments:
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
        """Return the arguments of the model, for one micro-batch."""
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


def pair_arguments(batch: Batch) -> Batch:
    """Return what TRL's RewardTrainer hands to its model: stacked pairs, whose scores need no mask of answers."""
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def answer_arguments(batch: Batch, *, with_kl: bool, max_length: int | None) -> Batch:
    """Return what TRL's KTOTrainer takes for answers, each with the label that says whether it is wanted.

    For its estimate of the KL term, each prompt also comes with the answer of the row before it in the micro-batch, cut
    to ``max_length`` as TRL's collator does:

        rows  p p a b    q c    r d e     KL rows  p p d e    q a b    r c
    """
    mask = (batch["labels"] != IGNORED_LABEL).to(torch.int64)
    made = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "completion_mask": mask}
    if with_kl:
        prompts, answers, marks = [], [], []
        for ids, is_token, row in zip(batch["input_ids"], batch["attention_mask"] != 0, mask, strict=True):
            ids, trained = ids[is_token], row[is_token]
            begin = int(trained.argmax()) if trained.any() else len(ids)
            prompts.append(ids[:begin])
            answers.append(ids[begin:])
            marks.append(trained[begin:])
        pairs = [torch.cat([prompt, answers[row - 1]])[:max_length] for row, prompt in enumerate(prompts)]
        masks = [
            torch.cat([torch.zeros_like(prompt), marks[row - 1]])[:max_length] for row, prompt in enumerate(prompts)
        ]
        made["KL_input_ids"] = pad_sequence(pairs, batch_first=True)
        made["KL_attention_mask"] = pad_sequence(list(map(torch.ones_like, pairs)), batch_first=True)
        made["KL_completion_mask"] = pad_sequence(masks, batch_first=True)
    return {**made, "label": batch["label"]}


def _check_labels(batch: Batch) -> None:
    """Raise ConfigError if labels are the next tokens, whatever made them."""
    ids, labels = batch.get("input_ids"), batch.get("labels")
    if not isinstance(ids, Tensor) or not isinstance(labels, Tensor) or ids.shape != labels.shape:
        return
    has_label = labels != IGNORED_LABEL
    is_same = bool((labels == ids)[has_label].all())
    is_next = bool((labels[:, :-1] == ids[:, 1:])[has_label[:, :-1]].all())
    if is_next and not is_same:
        raise ConfigError(f"the first batch: {SHIFTED_TWICE}")


def _without_labels(batch: Batch) -> Batch:
    """Return a row that trains nothing, for the rank that has no sample at the end of an uneven step."""
    width = max(2, batch["input_ids"].shape[-1])
    ids = torch.zeros(1, width, dtype=torch.int64)
    made = {"input_ids": ids, "labels": torch.full_like(ids, IGNORED_LABEL), "attention_mask": torch.ones_like(ids)}
    made["position_ids"] = torch.arange(width)[None]
    return {name: value for name, value in made.items() if name in batch}


class _Batches(IterableDataset[Any]):
    """Micro-batches. Its ``len`` is the number of samples of the run or the dataset, which the trainer reports."""

    def __init__(self, num_samples: int | None) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        if self._num_samples is None:
            raise TypeError("this run is endless: it has no len()")
        return self._num_samples


class TrainBatches(_Batches):
    """The batches of the training, with the state after each step.

    Args:
        loader: at the position where training begins or goes on; a `headrace.DataLoader` for data that are no run.
        shape: makes of a micro-batch the arguments of the model.
        skipped: micro-batches before that, which the trainer skips by iterating over them. They are not read.
        trained: returns the steps of the loader that the trainer has completed.
        repeats: how often each batch comes; where training goes on, it comes as often as it did not before.
    """

    def __init__(
        self,
        loader: Loader | headrace.loader.DataLoader,
        shape: Callable[[Any], Any],
        skipped: int,
        trained: Callable[[], int],
        repeats: int = 1,
    ) -> None:
        run: Any = getattr(loader, "run", None)
        self._run: Run | None = run
        super().__init__(len(loader.dataset) if run is None else run.length)
        self._loader = loader
        self._shape = shape
        self._skipped = skipped
        self._trained = trained
        self._repeats = repeats
        self._states = {steps_of(loader): loader.state_dict()}
        self._labels: dict[int, int] = {}

    def __iter__(self) -> Iterator[Any]:
        # The trainer skips within the epoch that it resumes; later epochs begin at their first batch.
        skipped, self._skipped = self._skipped, 0
        for _ in range(skipped):
            yield None
        step = steps_of(self._loader)
        for batch in self._loader:
            if self._run is not None and "step_supervised_tokens" in batch:
                self._labels[step] = batch["step_supervised_tokens"]
            step = self._noted(step)
            for _ in range(skipped % self._repeats, self._repeats):
                yield self._shape(batch)
            skipped = 0

    def _noted(self, step: int) -> int:
        """Keep the state if a batch was the last one of its step, and return the step of the next batch."""
        if (after := steps_of(self._loader)) != step:
            # Whatever was fetched ahead of the trainer, the state of each step that it may still save is here.
            trained = self._trained()
            self._states = {kept: state for kept, state in self._states.items() if kept >= trained}
            self._states[after] = self._loader.state_dict()
        return after

    def labels_of(self, step: int) -> int:
        """Return the labels of all ranks in a step whose batches were fetched."""
        if step not in self._labels and self._run is not None:
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
        _save(folder, self._run, state, state.get("position", 0))


class PromptText(str):
    """The text of a prompt, for rewards and logs, and ``ids``, its tokens, which nobody has to make again."""

    ids: list[int]

    def __new__(cls, text: str, ids: list[int]) -> PromptText:  # noqa: D102
        made = super().__new__(cls, text)
        made.ids = ids
        return made

    def __getnewargs__(self) -> tuple[str, list[int]]:  # type: ignore[override]
        return str(self), self.ids


class PromptMessages(list[dict[str, Any]]):
    """The messages of a prompt, for rewards and logs, and ``ids``, the tokens that the store has of them."""

    def __init__(self, messages: Sequence[dict[str, Any]], ids: list[int]) -> None:
        super().__init__(messages)
        self.ids = ids


class GenerationLayout(NamedTuple):
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
        """Return the rows of this rank. Prompts are messages if the columns have them, else texts.

        Raises:
            InputError: some of the prompts of the generation are messages, and some are texts.
        """
        has_messages = [_is_messages(columns.get("prompt")) for columns in batch["columns"]]
        if len(set(has_messages)) > 1:
            raise InputError(
                f"{sum(has_messages):,} of the {len(has_messages):,} prompts of a generation are messages, the others"
                " are texts, and TRL asks only the first one which of the two they are. Train on one kind, or prepare"
                " texts with `strings: chat`"
            )
        rows = []
        for row in range(self.rank * self.rows, (self.rank + 1) * self.rows):
            number = row // self.num_generations
            ids = batch["input_ids"][number][batch["attention_mask"][number] == 1].tolist()
            columns = batch["columns"][number]
            prompt = PromptMessages(columns["prompt"], ids) if has_messages[0] else PromptText(self.decode(ids), ids)
            if "prompt" in columns and not has_messages[0]:
                warnings.warn(
                    "the records have a column 'prompt' beside their prompt. TRL's rows have one field of this name:"
                    " rewards get the prompt as a text, and not the column. Rename it to have both",
                    stacklevel=2,
                )
            rows.append({**columns, "prompt": prompt})
        return rows


def _is_messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)


class _InHand(NamedTuple):
    """The prompts of a generation that is not used up, and the micro-step that is the last one to use it, plus 1."""

    positions: IntArray
    used_up: int


class PromptBatches(_Batches):
    """Rows of prompts, one list for each micro-step; and each prompt's fate.

    Args:
        prompts: dispatches them, from where training begins or goes on.
        layout: how they are given to the trainer.
        skipped: micro-steps before that, which the trainer skips by iterating over them. The generation that the last
            of them began is dispatched again, and used for the rest of its micro-steps.
        trained: returns the micro-steps whose optimiser steps the trainer has completed.
    """

    def __init__(self, prompts: Prompts, layout: GenerationLayout, skipped: int, trained: Callable[[], int]) -> None:
        super().__init__(prompts.run.length)
        self._run = prompts.run
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


class EvalBatches(_Batches):
    """The batches of an evaluation. While they are iterated, ``tell`` knows the mean number of labels of a batch.

    The trainer averages the losses of batches and ranks with equal weights. If each is the sum of its token losses
    divided by that mean, the average is the sum of all token losses divided by the number of all labels.
    """

    def __init__(
        self, loader: Loader, run: Run, shape: Callable[[Batch], Batch], tell: Callable[[float | None], None]
    ) -> None:
        super().__init__(run.length)
        self._loader = loader
        self._shape = shape
        self._tell = tell
        self._mean: float | None = None
        if is_counted(run) and run.num_steps is not None:
            self._mean = sum(count for _, count in supervised_tokens(run, 0, run.num_steps)) / len(loader)

    def __iter__(self) -> Iterator[Any]:
        self._tell(self._mean)
        try:
            yield from map(self._shape, self._loader)
        finally:
            self._tell(None)


def _as_it_is(batch: Any) -> Any:
    return batch


class RunDataLoader(DataLoader[Any]):
    """The DataLoader that a trainer gets. accelerate does not see it, and so does not shard or dispatch it."""

    def __init__(self, batches: _Batches, num_batches: int | None) -> None:
        # Its own generator, so that the state of torch's does not depend on how often loaders are iterated.
        super().__init__(batches, batch_size=None, collate_fn=_as_it_is, generator=torch.Generator())
        self._num_batches = num_batches

    def __len__(self) -> int:
        if self._num_batches is None:
            raise TypeError("this run is endless: it has no len()")
        return self._num_batches
