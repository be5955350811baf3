"""Comparisons made of documents with human summaries: the summary against a spoilt one. Nobody compared them.

They teach what a bad summary is in ways that can be named; what people prefer among good ones they do not teach.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tbactl_preference.pairs import SummaryPair, text_id
from tbactl_preference.reward_pairs import PreferencePair
from tbactl_preference.reward_text import FUNCTION_WORDS, sentences, words

# A summary that says almost the same is no worse, and neither is a sentence of the document that does.
_MAX_ALIKE = 0.5
_NUM_NEIGHBOURS = 5
_MIN_SENTENCE_WORDS = 4


class Corruptor:
    """Spoils human summaries. What it draws for a document depends on the seed, the kind and the document alone.

    Args:
        pairs: where other documents' summaries and words are taken from; usually those that will be spoilt.
        seed: of all draws.
    """

    def __init__(self, pairs: Sequence[SummaryPair], *, seed: int) -> None:
        self._pairs = list(pairs)
        self._seed = seed
        self._neighbours = _Neighbours([pair.document for pair in pairs])
        self._content_words = sorted({word for pair in pairs for word in _content(pair.summary)})

    def spoilt(self, pair: SummaryPair, *, kind: str) -> str | None:
        """A worse summary of the pair's document; None where this kind does not apply, or nothing would change."""
        draw = random.Random(f"{self._seed}/{kind}/{text_id(pair.document)}")
        text = _KINDS[kind](self, pair, draw)
        return None if text is None or not text.strip() or text == pair.summary else text

    def another_summary(self, pair: SummaryPair, draw: random.Random) -> str | None:
        """Of any other document."""
        return self._unlike(pair, draw.sample(self._pairs, min(8, len(self._pairs))))

    def nearest_summary(self, pair: SummaryPair, draw: random.Random) -> str | None:
        """Of one of the documents with the most words in common."""
        near = [self._pairs[index] for index in self._neighbours.of(pair.document)]
        draw.shuffle(near)
        return self._unlike(pair, near)

    def swapped_words(self, pair: SummaryPair, draw: random.Random) -> str | None:
        """With a third of the content words, at least one, replaced by words of other summaries."""
        tokens = pair.summary.split()
        positions = [index for index, token in enumerate(tokens) if index and _content(token)]
        if len(self._content_words) < 2 or not positions:
            return None
        for index in draw.sample(positions, max(1, len(positions) // 3)):
            ending = re.search(r"\W*$", tokens[index])
            tokens[index] = draw.choice(self._content_words) + (ending.group() if ending else "")
        return " ".join(tokens)

    def overlong(self, pair: SummaryPair, draw: random.Random) -> str | None:
        """Followed by two to four more sentences, of the document or of other summaries."""
        more = sentences(_body(pair.document))
        draw.shuffle(more)
        others = [other.summary for other in draw.sample(self._pairs, min(4, len(self._pairs)))]
        parts = (more if draw.random() < 0.5 else [*more[:1], *others])[: draw.randint(2, 4)]
        return " ".join([pair.summary, *parts]) if parts else None

    def _unlike(self, pair: SummaryPair, candidates: Sequence[SummaryPair]) -> str | None:
        for other in candidates:
            if other.document != pair.document and _alike(other.summary, pair.summary) < _MAX_ALIKE:
                return other.summary
        return None


def constructed_pairs(pairs: Sequence[SummaryPair], *, kinds: Sequence[str], seed: int) -> list[PreferencePair]:
    """The human summary of each document against one spoilt summary of each kind that applies.

    Args:
        pairs: documents with human summaries.
        kinds: of `KINDS`.
        seed: of the draws. The same pairs, kinds and seed give the same result.
    """
    corruptor = Corruptor(pairs, seed=seed)
    return [
        PreferencePair(prompt=pair.document, chosen=pair.summary, rejected=rejected, kind=kind)
        for pair in pairs
        for kind in kinds
        if (rejected := corruptor.spoilt(pair, kind=kind)) is not None
    ]


def _random_sentence(corruptor: Corruptor, pair: SummaryPair, draw: random.Random) -> str | None:
    candidates = [
        sentence
        for sentence in sentences(_body(pair.document))
        if len(sentence.split()) >= _MIN_SENTENCE_WORDS and _alike(sentence, pair.summary) < _MAX_ALIKE
    ]
    return draw.choice(candidates) if candidates else None


def _truncated(corruptor: Corruptor, pair: SummaryPair, draw: random.Random) -> str | None:
    """The first 40 to 80 % of the words; every other time with a full stop, as if it were finished."""
    tokens = pair.summary.split()
    kept = tokens[: max(1, round(len(tokens) * draw.uniform(0.4, 0.8)))]
    return " ".join(kept) + ("." if draw.random() < 0.5 else "") if len(kept) < len(tokens) else None


def _repeated(corruptor: Corruptor, pair: SummaryPair, draw: random.Random) -> str | None:
    """The whole two or three times, or its last one to four words again and again."""
    if draw.random() < 0.5:
        return " ".join([pair.summary] * draw.randint(2, 3))
    tokens = pair.summary.rstrip(".").split()
    tail = tokens[-draw.randint(1, 4) :]
    return " ".join(tokens + tail * draw.randint(1, 4)) + "."


def _shuffled(corruptor: Corruptor, pair: SummaryPair, draw: random.Random) -> str | None:
    """The words in another order, spelt as a sentence."""
    tokens = pair.summary.rstrip(".").split()
    tokens[0] = tokens[0][:1].lower() + tokens[0][1:]
    draw.shuffle(tokens)
    text = " ".join(tokens)
    return text[:1].upper() + text[1:] + "."


def _echo(corruptor: Corruptor, pair: SummaryPair, draw: random.Random) -> str | None:
    """The document's beginning."""
    tokens = pair.document.split()
    text = " ".join(tokens[: draw.randint(4, 16)])
    return text.rstrip(".,:;") + "." if draw.random() < 0.5 else text


Corruption = Callable[[Corruptor, SummaryPair, random.Random], str | None]
_KINDS: Mapping[str, Corruption] = {
    "other": Corruptor.another_summary,
    "nearest": Corruptor.nearest_summary,
    "swapped": Corruptor.swapped_words,
    "sentence": _random_sentence,
    "echo": _echo,
    "truncated": _truncated,
    "repeated": _repeated,
    "overlong": Corruptor.overlong,
    "shuffled": _shuffled,
}
KINDS = tuple(_KINDS)


class _Neighbours:
    """Documents that share the most words with a given one, rare words counting more (TF-IDF, cosine)."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(words(document)) for document in documents]
        frequency = Counter(word for count in counts for word in count)
        self._index = {document: number for number, document in enumerate(documents)}
        self._vectors = [_unit(count, frequency=frequency, num_documents=len(documents)) for count in counts]
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for number, vector in enumerate(self._vectors):
            for word, weight in vector.items():
                self._postings.setdefault(word, []).append((number, weight))

    def of(self, document: str) -> list[int]:
        """Positions of the nearest other documents, nearest first; `document` must be one of those given."""
        own = self._index[document]
        similarity: dict[int, float] = {}
        for word, weight in self._vectors[own].items():
            for number, other in self._postings[word]:
                similarity[number] = similarity.get(number, 0.0) + weight * other
        similarity.pop(own, None)
        return sorted(similarity, key=lambda number: (-similarity[number], number))[:_NUM_NEIGHBOURS]


def _unit(count: Counter[str], *, frequency: Counter[str], num_documents: int) -> dict[str, float]:
    # Words of more than a tenth of the documents tell little, and would make every document a neighbour.
    weights = {
        word: (1 + math.log(times)) * math.log(num_documents / frequency[word])
        for word, times in count.items()
        if frequency[word] <= max(2, num_documents // 10)
    }
    length = math.sqrt(sum(weight * weight for weight in weights.values()))
    return {word: weight / length for word, weight in weights.items()} if length else {}


def _content(text: str) -> set[str]:
    return {word for word in words(text) if word not in FUNCTION_WORDS and len(word) > 2}


def _alike(first: str, second: str) -> float:
    """Content words in common, of all (Jaccard): 0 to 1."""
    one, two = _content(first), _content(second)
    return len(one & two) / max(1, len(one | two))


def _body(document: str) -> str:
    """Without the first line, which in the embedded data names the function; a document of one line is all body."""
    first, _, rest = document.partition("\n")
    return rest or first
