"""Slices of parameters that divide by no number of ranks, put together by us and by DeepSpeed's own converter."""

import math
from pathlib import Path

import pytest
import torch

from tbactl.checkpoints.consolidate import OPTIMIZER_FILES, STAGE_3_MODULE_FILE, _stage_3_weights

# Elements: 1 (less than ranks), primes, a multiple of some numbers of ranks.
GROUPS = [
    {"scalar": (1,), "prime": (13,), "embedding": (11, 7), "even": (6, 10)},
    {"bias": (2,), "norm": (17,)},
]
FROZEN = {"frozen": (5, 3)}


def write_shards(directory: Path, *, num_ranks: int) -> dict[str, torch.Tensor]:
    """Write what DeepSpeed's stage 3 saves of parameters with known values."""
    generator = torch.Generator().manual_seed(0)
    shapes = {name: shape for group in (*GROUPS, FROZEN) for name, shape in group.items()}
    values = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    def slice_of(name: str, rank: int) -> torch.Tensor:
        size = math.ceil(values[name].numel() / num_ranks)
        padded = torch.full((size * num_ranks,), float("nan"))  # the filling must reach no weight
        padded[: values[name].numel()] = values[name].flatten()
        return padded[rank * size : (rank + 1) * size].clone()

    for rank in range(num_ranks):
        module = {
            "module": {"buffer": torch.arange(3.0)},
            "buffer_names": ["buffer"],
            "param_shapes": [{name: torch.Size(shape) for name, shape in group.items()} for group in GROUPS],
            "frozen_param_shapes": {name: torch.Size(shape) for name, shape in FROZEN.items()},
            "frozen_param_fragments": {name: slice_of(name, rank) for name in FROZEN},
            "shared_params": {"alias": "embedding"},
            "ds_version": "0",
        }
        flats = [torch.cat([slice_of(name, rank) for name in group]) for group in GROUPS]
        optimizer = {"zero_stage": 3, "partition_count": num_ranks, "fp32_flat_groups": flats}
        torch.save(module, directory / STAGE_3_MODULE_FILE.format(rank=rank))
        torch.save({"optimizer_state_dict": optimizer}, directory / OPTIMIZER_FILES[1].format(rank=rank))
    return values | {"buffer": torch.arange(3.0), "alias": values["embedding"]}


@pytest.mark.fault("I-76")
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 7, 16])
def test_stage_3_any_number_of_ranks_gives_every_parameter_exactly(tmp_path: Path, num_ranks: int):
    expected = write_shards(tmp_path, num_ranks=num_ranks)
    found = _stage_3_weights(tmp_path, num_ranks=num_ranks)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
@pytest.mark.fault("I-76")
@pytest.mark.parametrize("num_ranks", [3, 7])
def test_stage_3_weights_are_those_of_deepspeeds_own_converter(tmp_path: Path, num_ranks: int):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    write_shards(tmp_path, num_ranks=num_ranks)
    theirs = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path), tag="")
    ours = _stage_3_weights(tmp_path, num_ranks=num_ranks)
    assert theirs is not None and ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
