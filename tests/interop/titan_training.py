"""One process of test_torchtitan: torchtitan's own trainer, on the CPU, fed by its face.

torchtitan takes an accelerator for granted. Replaced are: the name of the device, the monitor of its memory, the time
limits of its process groups, and the tokeniser, which no loader of tokens asks for. Trainer, model, optimizer and
checkpoints are torchtitan's.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import warnings
from types import SimpleNamespace
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch._utils  # noqa: E402

torch.set_num_threads(1)
torch._utils._get_available_device_type = lambda: "cpu"

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components import metrics  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.distributed import utils as distributed  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel_ce_loss  # noqa: E402
from torchtitan.tools import utils  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

import headrace  # noqa: E402
from headrace.integrations.torchtitan import HeadraceDataLoader  # noqa: E402

SEQ_LEN, GLOBAL_BATCH, MICRO_BATCH, SAMPLES = 32, 8, 2, 51  # the last step has 3 samples: one micro-batch and a half


def make_run(store: str, samples: int | None = SAMPLES) -> headrace.Run:
    dataset = headrace.WindowDataset(headrace.open(store), seq_len=SEQ_LEN)
    return headrace.Run(dataset, global_batch_size=GLOBAL_BATCH, order=headrace.Order(seed=3), samples=samples)


def digest(tokens: Any) -> str:
    return hashlib.sha256(torch.as_tensor(tokens).numpy().tobytes()).hexdigest()[:12]


class Watched(Trainer):
    """torchtitan's trainer, which says what each step was fed and what it lost, and is killed at a micro-step."""

    said: Any
    kill_at: int
    micro_step = 0

    def post_dataloading_process(self, input_dict: dict[str, Any], labels: Any) -> Any:
        if self.micro_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.micro_step += 1
        assert input_dict["input"].shape == input_dict["positions"].shape == labels.shape == (MICRO_BATCH, SEQ_LEN)
        fed = [digest(row) for row, kept in zip(input_dict["input"], (labels != -100).any(1), strict=True) if kept]
        self.tell(step=self.step, fed=fed)
        return super().post_dataloading_process(input_dict, labels)

    def tell(self, **said: Any) -> None:
        print(json.dumps(said), file=self.said, flush=True)


def main(store: str, folder: str, report: str, kill_at: str) -> None:
    monitor = SimpleNamespace(device_name="cpu", reset_peak_stats=lambda: None)
    monitor.get_peak_stats = lambda: metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)
    metrics.build_device_memory_monitor = lambda: monitor
    utils.get_peak_flops = lambda name: 1.0
    distributed.set_pg_timeouts = lambda **timeouts: None

    config = llama3_debugmodel_ce_loss()
    config.model_spec = model_registry("debugmodel")
    config.model_spec.model.layers = config.model_spec.model.layers[:1]
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # FlexAttention has no backward on the CPU
    config.dump_folder = folder
    config.tokenizer = SimpleNamespace(build=lambda tokenizer_path: None)
    config.dataloader = HeadraceDataLoader.Config(run=lambda: make_run(store))
    config.checkpoint = CheckpointManager.Config(enable=True, interval=2, last_save_model_only=False)
    training = config.training
    training.seq_len, training.local_batch_size, training.global_batch_size = SEQ_LEN, MICRO_BATCH, GLOBAL_BATCH
    training.steps, training.disable_cuda_graphs, training.mixed_precision_param = 100, True, "float32"
    config.validator.enable, config.debug.seed = False, 1
    config.parallelism.spmd_backend = "partial_dtensor"

    trainer = Watched(config)
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply and add in one
    log = trainer.metrics_processor.log
    with open(f"{report}-{os.environ['RANK']}.jsonl", "w", encoding="utf-8") as said:  # noqa: PTH123
        trainer.said, trainer.kill_at = said, int(kill_at)

        def told(step: int, loss: float, *args: Any, **kwargs: Any) -> None:
            trainer.tell(step=step, loss=loss)
            log(step, loss, *args, **kwargs)

        trainer.metrics_processor.log = told
        trainer.train()
        trainer.tell(end=trainer.step)
    torch.distributed.barrier()
    trainer.close()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
