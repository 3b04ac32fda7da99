"""Trains with DistributedDataParallel and a DistributedSampler, as torch's tutorials do. It has no line of Headrace.

torchrun --nproc-per-node 2 ddp_loop.py --batch-size 4
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Doubles(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([2.0 * index])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = Doubles()
    sampler = DistributedSampler(dataset, shuffle=True, seed=3)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = torch.nn.Linear(1, 1)

    start_epoch, global_step = 0, 0
    if os.path.exists(args.checkpoint):  # noqa: PTH110
        checkpoint = torch.load(args.checkpoint)
        model.load_state_dict(checkpoint["model"])
        start_epoch, global_step = checkpoint["epoch"], checkpoint["step"]
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    for epoch in range(start_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            inputs, targets = batch
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            global_step += 1
            if rank == 0 and global_step % 5 == 0:
                checkpoint = {
                    "model": model.module.state_dict(),
                    "epoch": epoch,
                    "step": global_step,
                }
                torch.save(checkpoint, args.checkpoint + ".part")
                os.replace(args.checkpoint + ".part", args.checkpoint)  # noqa: PTH105
    dist.barrier()
    # Were the model the last to hold the group, torch would wait for its threads while these wait for the interpreter.
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
