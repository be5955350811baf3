"""How different the texts of a set are from one another: cosine diversity, distinct texts, clusters."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tbactl.evaluation.estimates import Estimate, share

# Any two texts of a cluster have at least this cosine.
CLUSTER_COSINE = 0.5
_NUM_RESAMPLES = 2000
# Resamples that are weighed at once: bounds the memory of many texts.
_NUM_TOGETHER = 100

Vectors = NDArray[np.float32]


def normalized(text: str) -> str:
    """What counts as the same text: without case, compatibility forms and differences in white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def cosine_diversity(vectors: Vectors) -> Estimate | None:
    """1 - mean cosine of all pairs i < j (a U-statistic), in [0, 2]; None for fewer than two texts.

    The paper's "cosine distance" (arXiv 2503.18929, Table 6). The interval is a percentile bootstrap over texts,
    seeded, in which two draws of the same text make no pair: their cosine is 1 by construction, and with them each
    resample would look less diverse than the set, by 1 / n of its diversity.

    Args:
        vectors: shape (texts, dimensions); rows of length 1, or 0 for a text without tokens.
    """
    number = len(vectors)
    if number < 2:
        return None
    rows = vectors.astype(np.float64)
    value = float(_diversity(np.ones((1, number)), rows)[0])
    if number < 3:
        return Estimate(value)
    generator = np.random.default_rng(0)
    draws = [
        _diversity(generator.multinomial(number, np.full(number, 1 / number), size=_NUM_TOGETHER).astype(float), rows)
        for _ in range(_NUM_RESAMPLES // _NUM_TOGETHER)
    ]
    # A resample of one text alone, again and again, has no pair; of three texts one in nine is such.
    low, high = np.nanquantile(np.concatenate(draws), (0.025, 0.975))
    return Estimate(value, (min(float(low), value), max(float(high), value)))


def cluster_labels(vectors: Vectors) -> list[int]:
    """A cluster for each text: agglomerative with complete linkage, so that any two of a cluster are alike.

    Complete linkage, since single linkage chains: it puts two texts that share nothing into one cluster when enough
    others stand between them. Memory and time grow with the square of the number of texts (1,024: 0.1 s).

    Args:
        vectors: as in `cosine_diversity`.
    """
    # scipy comes with scikit-learn, which takes a second to import.
    from scipy.cluster.hierarchy import fcluster, linkage

    number = len(vectors)
    if number < 2:
        return [0] * number
    distances = 1.0 - (vectors @ vectors.T)[np.triu_indices(number, k=1)]
    tree = linkage(np.clip(distances, 0.0, None), method="complete")
    return fcluster(tree, t=1.0 - CLUSTER_COSINE, criterion="distance").tolist()


def distinct(labels: Sequence[Hashable], *, counted: Sequence[bool] | None = None) -> Estimate:
    """How many different labels there are among the counted items of one item or more.

    A resample repeats items, and so has about a third fewer labels than the sample: a bootstrap interval would not
    hold the estimate. The jackknife (Efron and Stein 1981) has no such bias: leaving an item out changes the number by
    one where the item's label occurs once, by nothing elsewhere. So the number varies as the number of labels that
    occur once does, and has the half-widths of Wilson's interval of that one.

    Args:
        labels: of all items.
        counted: which items count; None: all. The others still are a part of the sample.
    """
    flags = [True] * len(labels) if counted is None else list(counted)
    numbers = Counter(label for label, flag in zip(labels, flags, strict=True) if flag)
    size = len(labels)
    once = share([flag and numbers[label] == 1 for label, flag in zip(labels, flags, strict=True)])
    assert once.interval is not None
    low, high = (size * (bound - once.value) for bound in once.interval)
    return Estimate(float(len(numbers)), (len(numbers) + low, min(float(size), len(numbers) + high)))


def _diversity(weights: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of sets that hold each text `weights` times, shape (sets, texts); pairs of a text with itself are left out."""
    own = np.square(weights)
    sums = weights @ rows
    cosines = np.square(sums).sum(axis=1) - own @ np.square(rows).sum(axis=1)
    pairs = np.square(weights.sum(axis=1)) - own.sum(axis=1)
    # Equal texts have a cosine that rounding may put above 1; no diversity is below 0 for that.
    return np.maximum(1.0 - np.divide(cosines, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0), 0.0)
