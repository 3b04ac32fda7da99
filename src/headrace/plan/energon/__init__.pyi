from headrace.plan.energon.order import (
    EnergonMixing as EnergonMixing,
    EnergonOrder as EnergonOrder,
    EnergonSample as EnergonSample,
    EnergonSource as EnergonSource,
    EnergonTopology as EnergonTopology,
    bit_reversal as bit_reversal,
    slice_offsets as slice_offsets,
    worker_bounds as worker_bounds,
    worker_seed as worker_seed,
)
from headrace.plan.torch_draws import WorkerRng as WorkerRng
