from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tbactl.objectives.logprobs import token_logprobs
from tests.support.reference_formulas import plain_token_logprobs


def inputs(
    *, rows: int = 2, num_tokens: int = 7, hidden: int = 8, vocabulary: int = 13, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weight, bias (all with gradients), target ids, mask."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, num_tokens, hidden, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, hidden, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(vocabulary, generator=generator).to(dtype).requires_grad_()
    target_ids = torch.randint(0, vocabulary, (rows, num_tokens), generator=generator)
    mask = torch.rand(rows, num_tokens, generator=generator) < 0.7
    return states, weight, bias, target_ids, mask


@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
def test_gradients_pass_the_numerical_check_in_float64(chunk_tokens: int) -> None:
    states, weight, bias, target_ids, mask = inputs(dtype=torch.float64)

    def function(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return token_logprobs(
            states,
            lm_head_weight=weight,
            lm_head_bias=bias,
            target_ids=target_ids,
            mask=mask,
            temperature=0.7,
            chunk_tokens=chunk_tokens,
        )

    assert torch.autograd.gradcheck(function, (states, weight, bias))


def test_logprobs_are_log_probabilities_of_the_tempered_distribution() -> None:
    states, weight, _, _, _ = inputs(rows=1, num_tokens=13, vocabulary=13)
    same_state = states[:, :1].expand(1, 13, -1)
    every_token = torch.arange(13)[None]
    logprobs = token_logprobs(
        same_state,
        lm_head_weight=weight,
        target_ids=every_token,
        mask=torch.ones(1, 13, dtype=torch.bool),
        temperature=0.7,
        chunk_tokens=4,
    )
    assert logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(logprobs[0], torch.log_softmax(weight @ states[0, 0] / 0.7, dim=0))


def test_bfloat16_inputs_give_float32_logprobs_and_gradients_in_their_own_type() -> None:
    states, weight, bias, target_ids, mask = inputs(num_tokens=64, dtype=torch.bfloat16)
    arguments: dict[str, Any] = {"target_ids": target_ids, "mask": mask, "temperature": 0.7}
    logprobs = token_logprobs(states, lm_head_weight=weight, lm_head_bias=bias, chunk_tokens=5, **arguments)
    plain = plain_token_logprobs(states, lm_head_weight=weight, lm_head_bias=bias, **arguments)
    assert logprobs.dtype == torch.float32
    # The head's product is rounded to bfloat16, and differently where its kernels see another shape or thread count.
    rounding = torch.finfo(torch.bfloat16).eps * float((states @ weight.T + bias).detach().abs().max()) / 0.7
    torch.testing.assert_close(logprobs, plain, rtol=0, atol=2 * rounding)
    gradients = torch.autograd.grad(logprobs.sum(), [states, weight, bias])
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16] * 3
    for gradient, expected in zip(gradients, torch.autograd.grad(plain.sum(), [states, weight, bias]), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.02 * float(expected.detach().abs().max()))


def test_weight_gradient_of_many_bfloat16_chunks_does_not_lose_the_late_ones() -> None:
    """1,000 chunks with the same small gradient: summed in bfloat16 the total would stop growing at 256 of them."""
    states = torch.ones(1000, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    ids, mask = torch.zeros(1000, dtype=torch.long), torch.ones(1000, dtype=torch.bool)
    logprobs = token_logprobs(states, lm_head_weight=weight, target_ids=ids, mask=mask, temperature=1.0, chunk_tokens=1)
    (gradient,) = torch.autograd.grad(logprobs.sum(), weight)
    assert gradient.flatten().tolist() == [500.0, -500.0]


def test_frozen_head_gets_no_gradient_and_does_not_stop_that_of_the_states() -> None:
    states, weight, _, target_ids, mask = inputs()
    logprobs = token_logprobs(
        states, lm_head_weight=weight.detach(), target_ids=target_ids, mask=mask, temperature=1.0, chunk_tokens=2
    )
    logprobs.sum().backward()
    assert states.grad is not None and states.grad[mask].abs().sum() > 0
    assert not states.grad[~mask].any()


def test_no_gradient_is_needed_for_the_reference_policy() -> None:
    states, weight, _, target_ids, mask = inputs()
    with torch.no_grad():
        logprobs = token_logprobs(
            states, lm_head_weight=weight, target_ids=target_ids, mask=mask, temperature=1.0, chunk_tokens=2
        )
    assert not logprobs.requires_grad


def test_states_outside_the_mask_may_be_anything() -> None:
    states, weight, _, target_ids, mask = inputs()
    arguments: dict[str, Any] = {"lm_head_weight": weight, "mask": mask, "temperature": 1.0, "chunk_tokens": 3}
    clean = token_logprobs(states, target_ids=target_ids, **arguments)
    padded = token_logprobs(
        states.detach().masked_fill(~mask[..., None], float("nan")), target_ids=target_ids.where(mask, -1), **arguments
    )
    assert torch.equal(padded, clean)
    assert not clean[~mask].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature must be > 0"),
        ({"chunk_tokens": 0}, "chunk_tokens must be >= 1"),
        ({"target_ids": torch.zeros(2, 6, dtype=torch.long)}, "must have the shape of hidden"),
        ({"lm_head_weight": torch.zeros(0, 3)}, "under ZeRO-3 it must be gathered"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    states, weight, _, target_ids, mask = inputs()
    arguments = {
        "lm_head_weight": weight,
        "target_ids": target_ids,
        "mask": mask,
        "temperature": 1.0,
        "chunk_tokens": 2,
    }
    with pytest.raises((AssertionError, TypeError), match=rf"(?i){message}|type-check error"):
        token_logprobs(states, **(arguments | change))


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.num_elements = max([self.num_elements, *sizes])
        return result


def test_barred_tokens_have_no_probability_where_they_are_barred_and_take_no_gradient() -> None:
    states, weight, _, _, _ = inputs(rows=1, num_tokens=13, vocabulary=13)
    same_state, every_token = states[:, :1].expand(1, 13, -1), torch.arange(13)[None]
    logprobs = token_logprobs(
        same_state,
        lm_head_weight=weight,
        target_ids=every_token,
        mask=torch.ones(1, 13, dtype=torch.bool),
        temperature=0.7,
        chunk_tokens=4,
        barred_ids=torch.tensor([2, 11]),
        is_barred=torch.ones(1, 13, dtype=torch.bool),
    )
    assert logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    assert torch.isinf(logprobs[0]).nonzero().flatten().tolist() == [2, 11]
    (gradient,) = torch.autograd.grad(logprobs[0, 3], weight)
    assert not gradient[[2, 11]].any() and gradient[[0, 3]].any(dim=1).all()


@pytest.mark.fault("I-31", "R-09")
@pytest.mark.parametrize("chunk_tokens", [8, 32])
def test_no_tensor_larger_than_a_chunk_of_logits_is_made_forward_or_backward(chunk_tokens: int) -> None:
    states, weight, bias, target_ids, _ = inputs(rows=4, num_tokens=64, hidden=4, vocabulary=500)
    arguments: dict[str, Any] = {
        "lm_head_weight": weight,
        "lm_head_bias": bias,
        "target_ids": target_ids,
        "mask": torch.ones(4, 64, dtype=torch.bool),
        "temperature": 0.7,
        "barred_ids": torch.tensor([7, 8]),
        "is_barred": (torch.arange(64) < 5).expand(4, 64) & (target_ids != 7) & (target_ids != 8),
    }
    with LargestTensor() as chunked:
        token_logprobs(states, chunk_tokens=chunk_tokens, **arguments).sum().backward()
    with LargestTensor() as plain:
        plain_token_logprobs(states, **arguments).sum().backward()
    assert chunked.num_elements == chunk_tokens * 500
    assert plain.num_elements == 4 * 64 * 500


_MEASURE_PEAK = """
import pathlib, re, sys, torch
from tbactl.objectives.logprobs import token_logprobs
from tests.support.reference_formulas import plain_token_logprobs
torch.set_num_threads(1)
states, weight = torch.randn(2048, 32, requires_grad=True), torch.randn(50_000, 32, requires_grad=True)
ids, mask = torch.randint(0, 50_000, (2048,)), torch.ones(2048, dtype=torch.bool)
arguments = dict(lm_head_weight=weight, target_ids=ids, mask=mask, temperature=1.0)
# Not ru_maxrss: that starts at the size of the process that forked this one.
def peak_mib(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
before = peak_mib()
chunk = int(sys.argv[1])
if chunk:
    token_logprobs(states, chunk_tokens=chunk, **arguments).sum().backward()
else:
    plain_token_logprobs(states, **arguments).sum().backward()
print(peak_mib() - before)
"""


@pytest.mark.fault("I-31")
@pytest.mark.slow
def test_peak_memory_of_the_process_grows_with_the_chunk_and_not_with_the_completion() -> None:
    def peak_mib(chunk_tokens: int) -> float:
        command = [sys.executable, "-c", _MEASURE_PEAK, str(chunk_tokens)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout)

    all_logits_mib = 2048 * 50_000 * 4 / 2**20
    small, plain = peak_mib(64), peak_mib(0)
    assert plain > 2 * all_logits_mib  # at least logits and their gradient
    assert small < 0.4 * all_logits_mib  # seen: 98 MiB; one tensor of all logits alone is 391
