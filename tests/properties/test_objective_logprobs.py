"""Chunked log-probs against all logits at once, for shapes that hypothesis chooses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tbactl.objectives.logprobs import token_logprobs
from tests.support.reference_formulas import plain_token_logprobs


@pytest.mark.fault("I-31")
@settings(max_examples=60)
@given(
    rows=st.integers(0, 3),
    num_tokens=st.integers(0, 9),
    chunk_tokens=st.integers(1, 12),
    vocabulary=st.integers(1, 11),
    has_bias=st.booleans(),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    mask_share=st.sampled_from([0.0, 0.5, 1.0]),
    num_barred=st.integers(0, 3),
    seed=st.integers(0, 2**31 - 1),
)
def test_chunked_logprobs_and_gradients_equal_the_plain_ones(
    rows: int,
    num_tokens: int,
    chunk_tokens: int,
    vocabulary: int,
    has_bias: bool,
    temperature: float,
    mask_share: float,
    num_barred: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, num_tokens, 4, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, 4, generator=generator, requires_grad=True)
    bias = torch.randn(vocabulary, generator=generator, requires_grad=True) if has_bias else None
    mask = torch.rand(rows, num_tokens, generator=generator) < mask_share
    # Where nothing is scored the ids may be anything, as padding is.
    target_ids = torch.randint(0, vocabulary, (rows, num_tokens), generator=generator).where(mask, -100)
    upstream = torch.randn(rows, num_tokens, generator=generator)
    inputs = [hidden, weight] if bias is None else [hidden, weight, bias]
    arguments = {
        "lm_head_weight": weight,
        "lm_head_bias": bias,
        "target_ids": target_ids,
        "mask": mask,
        "temperature": temperature,
    }
    if 0 < num_barred < vocabulary:
        # No target among them: what was sampled was not barred.
        barred_ids = torch.arange(vocabulary - num_barred, vocabulary)
        is_barred = (torch.rand(rows, num_tokens, generator=generator) < 0.5) & (target_ids < vocabulary - num_barred)
        arguments |= {"barred_ids": barred_ids, "is_barred": is_barred}

    plain = plain_token_logprobs(hidden, **arguments)  # type: ignore[arg-type]
    chunked = token_logprobs(hidden, chunk_tokens=chunk_tokens, **arguments)  # type: ignore[arg-type]

    torch.testing.assert_close(chunked, plain, rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad((plain * upstream).sum(), inputs)
    actual = torch.autograd.grad((chunked * upstream).sum(), inputs)
    for name, got, wanted in zip(("hidden", "weight", "bias"), actual, expected, strict=False):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
