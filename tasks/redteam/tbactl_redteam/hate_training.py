"""Trains the embedded judge `hate-minilm`: `python -m tbactl_redteam.hate_training --data DIRECTORY`.

Data: labeled_data.csv of Davidson et al. 2017 (arXiv 1703.04009; MIT), 24,783 tweets that people called hateful,
offensive or neither. They contain slurs: only the head is kept, no text.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import html
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tbactl.errors import TaskError, TbactlError
from tbactl_redteam.classifiers.hate_minilm import PROBE, WEIGHTS, HateHead
from tbactl_redteam.encoder import sentence_encoder

DATA_FILE = "labeled_data.csv"
_NEITHER = "2"
# One text in five is held out.
_HELD_OUT = 5
# Inverse strength of the L2 penalty. From 1 to 100 the held-out AUC differs by 0.0007.
_C = 10.0
_NUM_PROBE = 8
_DIGITS = 5
_Z_95 = 1.959963984540054
_NOISE = re.compile(r"https?://\S*|\bRT\b|@\w+:?")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tweets:
    """Texts, and which of them people called hateful or offensive."""

    texts: list[str]
    is_toxic: NDArray[np.bool_]

    def __getitem__(self, chosen: NDArray[np.bool_]) -> Tweets:
        return Tweets(texts=[self.texts[i] for i in np.flatnonzero(chosen)], is_toxic=self.is_toxic[chosen])


@dataclass(frozen=True, slots=True)
class Auc:
    """Area under the ROC curve: how often a toxic text scores above one that is not. With its 95 % interval."""

    value: float
    low: float
    high: float


def read_tweets(directory: Path) -> Tweets:
    """All tweets, without what is no language: addresses, user names, marks of a repeated tweet.

    Raises:
        TaskError: the file is missing or is another one.
    """
    path = directory / DATA_FILE
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(tweet_text(row["tweet"]), row["class"] != _NEITHER) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, KeyError, csv.Error) as error:
        raise TaskError(f"{path}: cannot be read ({error!r}); it must be that of Davidson et al. 2017.") from error
    return Tweets(texts=[text for text, _ in rows], is_toxic=np.array([toxic for _, toxic in rows], dtype=bool))


def tweet_text(tweet: str) -> str:
    """The words of a tweet; hashtags stay, without their mark."""
    text = _NOISE.sub("", html.unescape(html.unescape(tweet))).replace("#", "")
    return " ".join(text.split()).strip('!" ')


def is_held_out(texts: Sequence[str]) -> NDArray[np.bool_]:
    """One text in five, by its digest: equal texts are on the same side, and further data changes nothing."""
    digests = [hashlib.sha256(text.casefold().encode()).digest() for text in texts]
    return np.array([int.from_bytes(digest, "big") % _HELD_OUT == 0 for digest in digests])


def train(vectors: NDArray[np.float32], is_toxic: NDArray[np.bool_], *, probe: NDArray[np.float32]) -> HateHead:
    """Logistic regression, both classes of equal weight: with 83 % toxic tweets a plain one would doubt ordinary text.

    Args:
        vectors: of the texts, shape (texts, dimensions).
        is_toxic: shape (texts,).
        probe: the encoder's vector of `PROBE`.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_C, class_weight="balanced", max_iter=5000, tol=1e-6).fit(vectors, is_toxic)
    return HateHead(
        weights=tuple(round(weight, _DIGITS) for weight in model.coef_[0].tolist()),
        bias=round(float(model.intercept_[0]), _DIGITS),
        probe=tuple(round(number, _DIGITS) for number in probe[:_NUM_PROBE].tolist()),
    )


def auc(scores: Sequence[float], is_toxic: NDArray[np.bool_]) -> Auc:
    """With the interval of DeLong et al. (1988), by ranks.

    Args:
        scores: one for each text.
        is_toxic: two or more of each kind.
    """
    from scipy.stats import rankdata

    values = np.asarray(scores, dtype=np.float64)
    toxic, other = values[is_toxic], values[~is_toxic]
    ranks = rankdata(values)
    # For each toxic text the share of others below it, and for each other text the share of toxic ones above it.
    above = (ranks[is_toxic] - rankdata(toxic)) / len(other)
    below = 1.0 - (ranks[~is_toxic] - rankdata(other)) / len(toxic)
    value = float(above.mean())
    half = _Z_95 * float(np.sqrt(above.var(ddof=1) / len(toxic) + below.var(ddof=1) / len(other)))
    return Auc(value, max(0.0, value - half), min(1.0, value + half))


def main() -> int:
    """Train on four fifths, measure on the rest, write the head; prints one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m tbactl_redteam.hate_training", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help=f"directory with {DATA_FILE}")
    parser.add_argument(
        "--output", type=Path, default=WEIGHTS, help="the head's file; the default is the package's own"
    )
    arguments = parser.parse_args()
    try:
        tweets = read_tweets(arguments.data)
        encode = sentence_encoder(None)
        vectors = encode(tweets.texts)
        held_out = is_held_out(tweets.texts)
        head = train(vectors[~held_out], tweets.is_toxic[~held_out], probe=encode([PROBE])[0])
    except TbactlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    head.save(arguments.output)
    sys.stdout.write(json.dumps(_report(head, vectors[held_out], tweets.is_toxic[held_out])) + "\n")
    return 0


def _report(head: HateHead, vectors: NDArray[np.float32], is_toxic: NDArray[np.bool_]) -> dict[str, object]:
    scores = np.array(head.probabilities(vectors))
    area = auc(scores.tolist(), is_toxic)
    return {
        "num_held_out": len(scores),
        "auc": round(area.value, 4),
        "auc_interval": [round(area.low, 4), round(area.high, 4)],
        "sensitivity": round(float((scores[is_toxic] > 0.5).mean()), 4),
        "specificity": round(float((scores[~is_toxic] <= 0.5).mean()), 4),
    }


if __name__ == "__main__":
    sys.exit(main())
