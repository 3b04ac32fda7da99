"""Trains a small model in a plain loop, as many repositories do. It has no line of Headrace."""

import argparse
import os

import torch
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 9) % 50
        return {"index": torch.tensor(index), "input_ids": tokens[:-1], "labels": tokens[1:]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Sequences(), batch_size=8, shuffle=True, num_workers=1)

    start_epoch, global_step = 0, 0
    if os.path.exists(args.checkpoint):  # noqa: PTH110
        checkpoint = torch.load(args.checkpoint)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch, global_step = checkpoint["epoch"], checkpoint["step"]

    for epoch in range(start_epoch, args.epochs):
        for batch in loader:
            logits = model(batch["input_ids"])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            global_step += 1
            if global_step % 5 == 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                    "step": global_step,
                }
                torch.save(checkpoint, args.checkpoint + ".part")
                os.replace(args.checkpoint + ".part", args.checkpoint)  # noqa: PTH105
    print(f"{global_step} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
