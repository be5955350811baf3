"""What tests of real learners share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def process_group() -> Iterator[None]:
    """One rank, for all learners of this process: DeepSpeed keeps the first group it sees, so there is only one."""
    import torch.distributed as dist

    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    yield
    dist.destroy_process_group()
