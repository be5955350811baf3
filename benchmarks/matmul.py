"""Float32 matrix products of a layer, forward and backward: torch's own against oneDNN's, in turns on one core.

    python -m benchmarks.matmul             table and JSON
    python -m benchmarks.matmul --short     3 rounds instead of 15

A trainer takes oneDNN where `tbactl/matmul.py` says that it is faster (ADR 17). Processor time, so that other work
hardly counts. Bfloat16 is beside them to show what another precision would give; no run takes it unless told to.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measuring import machine, ratios, report, shown, spread, table_of
from tbactl import matmul

SHAPES = ((1652, 256, 688), (1652, 576, 1536), (2048, 2048, 2048))
"""Rows, inputs and outputs of a layer: the policy of gsm8k, SmolLM2-135M, a large one."""
WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "torch": torch.mm,
    "oneDNN": lambda left, right: matmul.onednn_product(left, right, None),
    "torch, bfloat16": torch.mm,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="3 rounds instead of 15")
    parser.add_argument("--results", type=Path, default=Path("runs/bench/matmul.json"), help="file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = [
        measure(shape, name=name, pair=pair, rounds=3 if arguments.short else 15)
        for shape in SHAPES
        for name, pair in products(*shape).items()
    ]
    results = {
        "machine": machine("torch"),
        # After the measurements: from then on torch's products are oneDNN's.
        "oneDNN is used here": matmul.use_full_vector_width(),
        "measured": measured,
    }
    rows = [
        (row["layer"], row["product"], *(shown(row["gflops"][way]) for way in WAYS), shown(row["over"], ".2f"))
        for row in measured
    ]
    columns = ("rows x inputs x outputs", "", *WAYS, "oneDNN over torch")
    report(results, table_of("GFLOP/s of one core", columns, rows), file=arguments.results)


def products(num_rows: int, num_inputs: int, num_outputs: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Left and right sides of a layer's three products, as autograd hands them over."""
    inputs, outputs = torch.randn(num_rows, num_inputs), torch.randn(num_rows, num_outputs)
    weight = torch.randn(num_outputs, num_inputs)
    return {
        "forward": (inputs, weight.t()),
        "gradient of inputs": (outputs, weight),
        "gradient of weights": (outputs.t(), inputs),
    }


def measure(shape: tuple[int, int, int], *, name: str, pair: tuple[Tensor, Tensor], rounds: int) -> dict[str, Any]:
    """All ways in turn; a first round warms up."""
    gflop = 2 * shape[0] * shape[1] * shape[2] / 1e9
    gflops: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way, product in WAYS.items():
            left, right = (side.bfloat16() for side in pair) if "bfloat16" in way else pair
            start = time.process_time()
            product(left, right)
            if number:
                gflops[way].append(gflop / (time.process_time() - start))
    return {
        "layer": " x ".join(str(size) for size in shape),
        "product": name,
        "gflops": {way: spread(values) for way, values in gflops.items()},
        "over": ratios(gflops["oneDNN"], gflops["torch"]),
    }


if __name__ == "__main__":
    main()
