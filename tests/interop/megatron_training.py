"""One process of test_megatron_external: a tiny model behind megatron-core's groups, iterators and batches.

Megatron-LM's training loop needs CUDA. Here its steps are taken by hand, on the CPU: a provider, `RerunDataIterator`, a
batch that goes from tensor-parallel rank 0 to its peers and is cut for context-parallel ranks, `consumed_train_samples`
in the checkpoint, the state of the loader beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.num_microbatches_calculator import (  # noqa: E402
    get_current_global_batch_size,
    get_num_microbatches,
    init_num_microbatches_calculator,
    update_num_microbatches,
)
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.core.utils import get_batch_on_this_cp_rank  # noqa: E402

import headrace  # noqa: E402
from headrace.integrations.megatron import batch_schedule, dataloaders  # noqa: E402

SEQ_LEN, VOCAB, RAMP, SAMPLES = 16, 2000, [4, 4, 16], 76


def arguments(tensor: int = 1, context: int = 1) -> Namespace:
    return Namespace(
        dataloader_type="external",
        global_batch_size=12,
        micro_batch_size=2,
        rampup_batch_size=RAMP,
        seq_length=SEQ_LEN,
        train_samples=SAMPLES,
        train_iters=None,
        tensor_model_parallel_size=tensor,
        context_parallel_size=context,
        consumed_train_samples=0,
        consumed_valid_samples=0,
        iteration=0,
    )


def make_run(store: str, args: Namespace) -> headrace.Run:
    opened = headrace.open(store)
    data = {str(stride): headrace.WindowDataset(opened, seq_len=SEQ_LEN, stride=stride) for stride in (16, 8)}
    blend = headrace.Blend(data, weights={"16": 2, "8": 1})
    return headrace.Run(blend, global_batch_size=batch_schedule(args), order=headrace.Order(seed=5), samples=SAMPLES)


def main(store: str, folder: str, report: str, tensor: str, context: str, kill_at: str) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(int(tensor), context_parallel_size=int(context))
    args = arguments(int(tensor), int(context))
    args.dataloader_save = folder
    args.data_parallel_size = parallel_state.get_data_parallel_world_size()
    init_num_microbatches_calculator(
        rank, args.rampup_batch_size, args.global_batch_size, args.micro_batch_size, args.data_parallel_size
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 16), torch.nn.Linear(16, VOCAB))
    if saved := sorted(Path(folder).glob("model-*.pt")):
        checkpoint = torch.load(saved[-1])
        model.load_state_dict(checkpoint["model"])
        args.iteration, args.consumed_train_samples = checkpoint["iteration"], checkpoint["consumed_train_samples"]
    train, _, _ = dataloaders(args, train=make_run(store, args))
    iterator = None if train is None else RerunDataIterator(train)
    micro_step = 0
    with Path(f"{report}-{rank}.jsonl").open("w", encoding="utf-8") as said:
        print(json.dumps({"reads": train is not None}), file=said, flush=True)
        while args.consumed_train_samples < SAMPLES:
            update_num_microbatches(args.consumed_train_samples)
            total = torch.zeros(2)
            for _ in range(get_num_microbatches()):
                if micro_step == int(kill_at):
                    os.kill(os.getpid(), signal.SIGKILL)
                micro_step += 1
                batch = get_batch(iterator, args)
                rows = [hashlib.sha256(row.numpy().tobytes()).hexdigest()[:12] for row in batch["tokens"]]
                is_first = (
                    parallel_state.get_tensor_model_parallel_rank() == parallel_state.get_context_parallel_rank() == 0
                )
                print(json.dumps({"step": args.iteration, "fed": rows if is_first else []}), file=said, flush=True)
                batch = get_batch_on_this_cp_rank(batch)
                losses = torch.nn.functional.cross_entropy(
                    model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten(), reduction="none"
                )
                loss = (losses * batch["loss_mask"].flatten()).sum()
                loss.backward()
                total += torch.stack([loss.detach(), batch["loss_mask"].sum()])
            group = parallel_state.get_data_parallel_group(with_context_parallel=True)
            dist.all_reduce(total, group=group)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
                parameter.data -= 0.5 * parameter.grad / total[1]
                parameter.grad = None
            print(json.dumps({"step": args.iteration, "loss": float(total[0] / total[1])}), file=said, flush=True)
            args.iteration += 1
            args.consumed_train_samples += get_current_global_batch_size()
            if args.iteration % 2 == 0:
                save(iterator, model, args)
        position = None if train is None else train.loader.position
        print(json.dumps({"position": position}), file=said, flush=True)
    dist.barrier()
    os._exit(0)


def get_batch(iterator: Any, args: Namespace) -> dict[str, torch.Tensor]:
    """Megatron's way: tensor-parallel rank 0 reads, and its peers know the shapes."""
    shape = (args.micro_batch_size, args.seq_length)
    dtypes = dict.fromkeys(("tokens", "labels", "position_ids"), torch.int64) | {"loss_mask": torch.float32}
    batch = {name: torch.empty(shape, dtype=dtype) for name, dtype in dtypes.items()}
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        batch = next(iterator)
        assert {name: (value.shape, value.dtype) for name, value in batch.items()} == {
            name: (shape, dtype) for name, dtype in dtypes.items()
        }
    for name in sorted(dtypes):
        source = parallel_state.get_tensor_model_parallel_src_rank()
        dist.broadcast(batch[name], source, group=parallel_state.get_tensor_model_parallel_group())
    return batch


def save(iterator: Any, model: torch.nn.Module, args: Namespace) -> None:
    """Save as Megatron does: the state of the loader once for each data-parallel rank, then the checkpoint."""
    folder = Path(args.dataloader_save)
    if parallel_state.get_tensor_model_parallel_rank() == 0 and (state := iterator.iterable.save_state()) is not None:
        place = folder / f"iter_{args.iteration:07d}" / "mp_rank_00"
        place.mkdir(parents=True, exist_ok=True)
        name = f"train_dataloader_dprank{parallel_state.get_data_parallel_rank():03d}.pt"
        torch.save({"dataloader_state_dict": state}, place / name)
    dist.barrier()
    if dist.get_rank() == 0:
        checkpoint = {name: getattr(args, name) for name in ("iteration", "consumed_train_samples")}
        torch.save(checkpoint | {"model": model.state_dict()}, folder / "half-written.pt")
        (folder / "half-written.pt").rename(folder / f"model-{args.iteration:03d}.pt")
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
