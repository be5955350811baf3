"""Products of float32 matrices at the full vector width of processors on which torch's own library takes half of it.

torch computes them with MKL, which knows AVX-512 on processors of one maker only. oneDNN, which is part of torch too,
uses it on all: twice as fast on AMD's, forward and backward (docs/performance.md, "Matrix products").
"""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

CPU_INFO = Path("/proc/cpuinfo")
MIN_MULTIPLICATIONS = 2**22
"""Smaller products stay with torch: going through Python costs them more than they would gain."""


@functools.cache
def use_full_vector_width() -> bool:
    """From here on, in this process, compute large float32 products on the CPU (`aten::mm`, `addmm`) by oneDNN.

    Nothing is done where torch is fast by itself, or where its oneDNN gives another result than it should. The choice
    depends on the machine alone, so runs on one machine stay comparable bit by bit.

    Returns:
        Whether products are computed by oneDNN.
    """
    if not _has_narrow_mkl() or not _is_right():
        return False
    _install(_library())
    logger.info("matrix products: oneDNN, since MKL does not use AVX-512 on this processor")
    return True


@functools.cache
def _library() -> torch.library.Library:
    # Kept for the life of the process: the kernels go with it.
    return torch.library.Library("aten", "IMPL")


def _install(library: torch.library.Library) -> None:
    with warnings.catch_warnings():
        # torch says that an operator is overridden. It is meant to be.
        warnings.simplefilter("ignore", UserWarning)
        library.impl("mm", _mm, "CPU")
        library.impl("addmm", _addmm, "CPU")


def _has_narrow_mkl() -> bool:
    has_operator = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not has_operator or not CPU_INFO.is_file():
        return False
    information = CPU_INFO.read_text()
    return "AuthenticAMD" in information and " avx512f " in information


def _is_right() -> bool:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator) for shape in ((67, 129), (129, 35)))
    bias = torch.randn(35, generator=generator)
    try:
        found = onednn_product(left, right, bias)
    except RuntimeError as error:
        logger.warning("matrix products: torch's own, since oneDNN refuses (%s)", error)
        return False
    if torch.allclose(found, torch.addmm(bias, left, right), rtol=1e-4, atol=1e-4):
        return True
    logger.warning("matrix products: torch's own, since oneDNN's differ from them")
    return False


def onednn_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """Left @ right + bias of float32 matrices, whatever their strides."""
    return torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")


def _is_worth_it(left: Tensor, right: Tensor) -> bool:
    # What does not fit together is left to torch, which says so.
    are_single = left.dtype == right.dtype == torch.float32
    fits = are_single and left.dim() == right.dim() == 2 and left.shape[1] == right.shape[0]
    return fits and left.shape[0] * left.shape[1] * right.shape[1] >= MIN_MULTIPLICATIONS


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if _is_worth_it(left, right):
        return onednn_product(left, right, None)
    # The variant with `out` is an operator of its own, and torch's still.
    return torch.mm(left, right, out=left.new_empty(left.shape[:1] + right.shape[1:]))


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    is_plain = beta == alpha == 1 and bias.dim() == 1 and bias.dtype == torch.float32
    if is_plain and _is_worth_it(left, right) and bias.shape[0] == right.shape[1] and bias.is_contiguous():
        return onednn_product(left, right, bias)
    out = left.new_empty(left.shape[:1] + right.shape[1:])
    return torch.addmm(bias, left, right, beta=beta, alpha=alpha, out=out)
