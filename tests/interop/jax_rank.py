"""One process of test_jax: trains with JAX on arrays over all processes, and says what each micro-step was fed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import headrace

SAMPLES_AT_ONCE = 4


def loss_of(table: jax.Array, inputs: jax.Array, labels: jax.Array) -> jax.Array:
    return ((table[inputs] - labels / 2**16) ** 2).sum()


def main(store: str, folder: str, killed_at: str) -> None:
    rank, world_size, place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(folder)
    if world_size > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", world_size, rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, same = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    step_of = jax.jit(jax.value_and_grad(loss_of), out_shardings=same)

    data = headrace.WindowDataset.open(store, seq_len=8)
    run = headrace.Run(data, global_batch_size=8, order=headrace.Order(seed=1), samples=80)
    loader = headrace.NumpyLoader(
        run, micro_batch_size=SAMPLES_AT_ONCE // world_size, rank=jax.process_index(), world_size=jax.process_count()
    )
    saved = place / "checkpoint.npz"
    table = np.zeros(2**16, np.float32)
    if saved.exists():
        with np.load(saved) as checkpoint:
            table = checkpoint["table"]
            loader.set_state(json.loads(str(checkpoint["state"])))
    table, gradient = jax.device_put(table, same), jax.device_put(jnp.zeros(2**16), same)
    step = loader.step
    with (place / f"said-{rank}.{len(list(place.glob('said-*')))}").open("w") as said:
        for number, batch in enumerate(loader, 1):
            parts = [jax.make_array_from_process_local_data(rows, batch[name]) for name in ("input_ids", "labels")]
            assert parts[0].shape == (SAMPLES_AT_ONCE, 8)
            loss, more = step_of(table, *parts)
            gradient = gradient + more
            print(json.dumps([step, batch["sample_positions"].tolist(), float(loss)]), file=said, flush=True)
            if number == int(killed_at):
                os.kill(os.getpid(), signal.SIGKILL)
            if loader.step == step and loader.position < 80:
                continue
            step, table, gradient = loader.step, table - 0.1 * gradient, gradient * 0
            if step % 2 == 0 and rank == 0:
                with (place / "next").open("wb") as file:
                    np.savez(file, table=np.asarray(table), state=json.dumps(loader.get_state()))
                (place / "next").replace(saved)


if __name__ == "__main__":
    main(*sys.argv[1:])
