"""Large float32 products by oneDNN: the same results for every shape and dtype, and torch's own where it is no gain."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.library import _scoped_library
from transformers.pytorch_utils import Conv1D

from tbactl import matmul

WORTH_IT = (300, 160, 200)
SHAPES = [WORTH_IT, (3, 4, 5), (0, 4, 5), (4, 0, 5), (4, 5, 0)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The kernels installed, whatever the processor; shapes of the products that oneDNN computed."""
    shapes: list[tuple[int, ...]] = []
    product = matmul.onednn_product

    def noted(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        shapes.append((*left.shape, right.shape[1]))
        return product(left, right, bias)

    monkeypatch.setattr(matmul, "onednn_product", noted)
    with _scoped_library("aten", "IMPL") as library:
        matmul._install(library)
        yield shapes


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (4 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def by_numpy(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product without torch."""
    return torch.from_numpy(left.double().numpy() @ right.double().numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_is_the_sum_of_products(computed: list[tuple[int, ...]], shape: tuple[int, int, int], dtype):
    rows, inner, columns = shape
    left, right, bias = numbers(rows, inner, dtype=dtype), numbers(inner, columns, dtype=dtype), numbers(columns)
    bias = bias.to(dtype)
    expected = by_numpy(left, right)
    tolerance = {"rtol": 0.05, "atol": 1.0} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close((left @ right).double(), expected, **tolerance)
    torch.testing.assert_close(torch.addmm(bias, left, right).double(), expected + bias, **tolerance)
    assert computed == ([shape, shape] if dtype == torch.float32 and shape == WORTH_IT else [])


@pytest.mark.parametrize(("left_is_turned", "right_is_turned"), [(True, False), (False, True), (True, True)])
def test_transposed_views_are_products_too(computed, left_is_turned: bool, right_is_turned: bool):
    rows, inner, columns = WORTH_IT
    left = numbers(inner, rows).t() if left_is_turned else numbers(rows, inner)
    right = numbers(columns, inner).t() if right_is_turned else numbers(inner, columns)
    torch.testing.assert_close((left @ right).double(), by_numpy(left, right), rtol=1e-4, atol=1e-3)
    assert computed == [WORTH_IT]


@pytest.mark.parametrize("layer", [torch.nn.Linear(160, 200), torch.nn.Linear(160, 200, bias=False), Conv1D(200, 160)])
def test_gradients_of_layers_go_the_same_way(computed: list[tuple[int, ...]], layer: torch.nn.Module):
    inputs = numbers(3, 100, 160).requires_grad_()
    layer(inputs).square().sum().backward()
    found = [inputs.grad, *(parameter.grad for parameter in layer.parameters())]
    assert len(computed) == 3
    layer.double()
    exact = numbers(3, 100, 160).double().requires_grad_()
    layer.zero_grad()
    layer(exact).square().sum().backward()
    for single, double in zip(found, [exact.grad, *(p.grad for p in layer.parameters())], strict=True):
        assert single is not None and double is not None
        scale = double.abs().max().item()
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5 * scale)


def test_scaled_and_broadcast_sums_are_torchs(computed: list[tuple[int, ...]]):
    rows, inner, columns = WORTH_IT
    left, right = numbers(rows, inner), numbers(inner, columns)
    for bias in (numbers(rows, columns), numbers(1, columns), numbers(1)):
        expected = 0.5 * bias + 2 * by_numpy(left, right)
        found = torch.addmm(bias, left, right, beta=0.5, alpha=2)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-2)
    assert computed == []


def test_shapes_that_do_not_fit_are_refused_by_torch(computed: list[tuple[int, ...]]):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        numbers(300, 400) @ numbers(300, 400)
    assert computed == []


def test_repeated_products_are_the_same_bits(computed: list[tuple[int, ...]]):
    left, right = numbers(300, 160), numbers(160, 200)
    assert torch.equal(left @ right, left @ right)
    assert len(computed) == 2


@pytest.mark.parametrize(
    ("information", "is_narrow"),
    [
        ("vendor_id : AuthenticAMD\nflags : fma avx2 avx512f avx512dq sse4a\n", True),
        ("vendor_id : AuthenticAMD\nflags : fma avx2 sse4a\n", False),
        ("vendor_id : GenuineIntel\nflags : fma avx2 avx512f avx512dq\n", False),
        (None, False),
    ],
)
def test_only_processors_that_mkl_uses_half_of_are_helped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, information: str | None, is_narrow: bool
):
    if information is not None:
        (tmp_path / "cpuinfo").write_text(information)
    monkeypatch.setattr(matmul, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert matmul._has_narrow_mkl() is is_narrow


def test_a_wrong_product_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(matmul, "onednn_product", lambda left, right, bias: left @ right)
    assert not matmul._is_right()
    assert "differ" in caplog.text


def test_a_refused_product_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def refuse(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(matmul, "onednn_product", refuse)
    assert not matmul._is_right()
    assert "no such kernel" in caplog.text
