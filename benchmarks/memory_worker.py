"""Measures the peak of one computation of log-probs and their gradients for benchmarks/memory.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measuring import serve
from benchmarks.replay_data import resident_bytes
from tbactl.objectives.logprobs import token_logprobs

MEBIBYTE = 2**20
STATUS = Path("/proc/self/status")


def measure(*, chunk_tokens: int, vocabulary: int, positions: int, hidden: int) -> dict[str, int]:
    """Bytes above what is resident when the inputs are there; of these, those of the gradients that are returned."""
    torch.manual_seed(0)
    states = torch.randn(positions, hidden, requires_grad=True)
    head = torch.randn(vocabulary, hidden).mul_(0.02).requires_grad_()
    targets = torch.randint(vocabulary, (positions,))
    # The first product makes the libraries' own buffers.
    (states[:8].detach() @ head[:64].detach().T).sum()
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    score = chunked(chunk_tokens) if chunk_tokens else plain
    score(states, head, targets).sum().backward()
    assert states.grad is not None and head.grad is not None
    return {
        "peak_bytes": high_water_bytes(STATUS) - before,
        "returned_bytes": states.grad.nbytes + head.grad.nbytes,
    }


def plain(states: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Logits, log-softmax, gather."""
    return (states @ head.T).log_softmax(dim=-1).gather(-1, targets[:, None]).squeeze(-1)


def chunked(chunk_tokens: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The trainer's."""

    def score(states: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        mask = torch.ones_like(targets, dtype=torch.bool)
        return token_logprobs(
            states, lm_head_weight=head, target_ids=targets, mask=mask, temperature=1.0, chunk_tokens=chunk_tokens
        )

    return score


def high_water_bytes(status: Path) -> int:
    """Most memory that a process has had in RAM, by its /proc/PID/status."""
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"no VmHWM in {status}")


if __name__ == "__main__":
    serve(lambda asked: measure(**asked), descriptor=int(sys.argv[1]))
