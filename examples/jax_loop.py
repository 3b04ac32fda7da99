"""Feed JAX: global arrays over all devices from the batches of each process, without torch, and resume.

Each process of a job reads its own part of a step. ``make_array_from_process_local_data`` joins the parts to one array
that is sharded over the devices of all processes.
"""

from __future__ import annotations

import json
import tempfile
from itertools import islice
from pathlib import Path

import corpus
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import headrace

BATCH = 8


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
    corpus.make(folder)
    run = headrace.Run(headrace.WindowDataset.open(folder / "small", seq_len=64), global_batch_size=BATCH)
    share = {"rank": jax.process_index(), "world_size": jax.process_count()}
    loader = headrace.NumpyLoader(run, micro_batch_size=BATCH // jax.process_count(), **share)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    def loss_of(table: jax.Array, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(table.at[inputs].get(out_sharding=sharding))
        return -(logits * jax.nn.one_hot(labels, 1000)).sum(-1).mean()

    step = jax.jit(jax.value_and_grad(loss_of))
    table = jnp.zeros((1000, 1000))
    losses = []
    for batch in islice(loader, 20):
        # Token ids are int64 in NumPy, and int32 in JAX unless x64 is enabled.
        local = {name: batch[name] for name in ("input_ids", "labels")}
        arrays = {name: jax.make_array_from_process_local_data(sharding, value) for name, value in local.items()}
        loss, gradient = step(table, arrays["input_ids"], arrays["labels"])
        table -= 100.0 * gradient
        losses.append(float(loss))
    print(f"loss at first {losses[0]:.3f}, at last {losses[-1]:.3f}, on arrays {arrays['input_ids'].shape}")

    state = json.dumps(loader.get_state())  # into the checkpoint, by one process for all
    resumed = headrace.NumpyLoader(run, micro_batch_size=4, rank=1, world_size=2)
    resumed.set_state(json.loads(state))
    print("rank 1 of 2 continues with", next(iter(resumed))["sample_positions"].tolist())


if __name__ == "__main__":
    main()
