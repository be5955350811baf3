"""What is written beside a reward model's weights: metrics.json, the model card README.md and calibration.png."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tbactl import __version__
from tbactl.config.reward import CONSTRUCTED, RewardConfig
from tbactl.errors import ConfigError
from tbactl_preference.reward_data import Comparisons
from tbactl_preference.reward_quality import Accuracy, Quality

METRICS_FILE = "metrics.json"
CARD_FILE = "README.md"
PLOT_FILE = "calibration.png"
_MODELS = {
    "encoder": "a linear head over a frozen sentence encoder (all-MiniLM-L6-v2) and a few counts",
    "lexical": "a small head over counts of words: no encoder, no pretrained vectors",
    "classifier": "all weights of a sequence classifier",
}


def write_card(
    directory: Path, *, config: RewardConfig, comparisons: Comparisons, num_parameters: int, held_out: Quality
) -> None:
    """Write the three files into a directory that is there.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    metrics = {
        "num_train_pairs": len(comparisons.train),
        "num_equal_dropped": comparisons.num_equal,
        "num_parameters": num_parameters,
        "held_out": held_out.as_dict(),
        "config": config.model_dump(mode="json", exclude={"runs_dir"}),
        "tbactl": __version__,
    }
    (directory / METRICS_FILE).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    card = "\n".join(_card_lines(config, comparisons=comparisons, num_parameters=num_parameters, held_out=held_out))
    (directory / CARD_FILE).write_text(card + "\n", encoding="utf-8")
    draw_calibration(held_out, title=config.name, file=directory / PLOT_FILE)


def draw_calibration(quality: Quality, *, title: str, file: Path) -> None:
    """Reliability diagram: how often the model's order is right against how sure of it the model is.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    confidences = [one.confidence for one in quality.bins]
    axes.plot([0.5, 1.0], [0.5, 1.0], color="0.6", linestyle="--", label="honest")
    intervals = [
        Accuracy.of([True] * round(one.accuracy * one.num_pairs) + [False] * round((1 - one.accuracy) * one.num_pairs))
        for one in quality.bins
    ]
    axes.vlines(confidences, [one.low for one in intervals], [one.high for one in intervals], color="C0", alpha=0.5)
    axes.plot(confidences, [one.accuracy for one in quality.bins], marker="o", color="C0", label="held-out pairs")
    axes.set(ylabel="order is right (95 % interval)", ylim=(0.0, 1.02))
    axes.set_title(f"{title}: calibration error {quality.calibration_error:.3f}", fontsize="medium")
    axes.legend(loc="lower right", frameon=False)
    counts.bar(confidences, [one.num_pairs for one in quality.bins], width=0.03, color="C0")
    counts.set(xlabel="P(order is right) by the model", ylabel="pairs", yscale="log")
    counts.yaxis.set_minor_locator(NullLocator())
    # Without the version of matplotlib, so that the same figures give the same bytes.
    figure.savefig(file, dpi=100, metadata={"Software": None})


def check_matplotlib() -> None:
    """Before anything is trained.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "the calibration plot needs matplotlib, not installed here; `pip install matplotlib`."
        ) from None


def _card_lines(
    config: RewardConfig, *, comparisons: Comparisons, num_parameters: int, held_out: Quality
) -> Iterator[str]:
    yield from (f"# Reward model {config.name}", "")
    yield f"Trained by tbactl {__version__}: {_MODELS[config.model.kind]}, {num_parameters:,} trained parameters."
    if config.model.path:
        yield f"It starts from `{config.model.path}`."
    yield "A difference of two scores is proportional to the log-odds that the first text is the better one."
    yield from ("", "## Data", "", f"{comparisons.description}.", "")
    yield f"{len(comparisons.train):,} pairs to train, {held_out.overall.num_pairs:,} held out, seed {config.seed}."
    if config.model.kind == "lexical":
        yield "Words are counted on half of the prompts; the head is fitted to the pairs of the other half."
    if comparisons.num_equal:
        yield f"{comparisons.num_equal:,} rows were dropped: both completions are equal."
    yield from ("", "## Held-out accuracy", "", "| kind | accuracy | 95 % interval | pairs |", "|---|---|---|---|")
    for kind, accuracy in {**held_out.kinds, "**together**": held_out.overall}.items():
        interval = f"{accuracy.low:.3f} to {accuracy.high:.3f}"
        yield f"| {kind} | {accuracy.accuracy:.3f} | {interval} | {accuracy.num_pairs:,} |"
    yield ""
    yield f"Log loss {held_out.log_loss:.3f} nats (guessing: 0.693)."
    yield f"Calibration error {held_out.calibration_error:.3f}."
    yield from ("", f"![calibration]({PLOT_FILE})", "", "## Limits", "")
    if config.data.source == CONSTRUCTED:
        yield "It knows the faults that were constructed and no others. What people prefer was not measured."
    else:
        yield "It knows this data only; of other prompts or other writers nothing was measured."
    yield "A policy trained against it for long finds texts that it overrates: judge by another reward model as well."
