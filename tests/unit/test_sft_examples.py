from __future__ import annotations

from itertools import count, islice

import pytest
import torch

from tbactl.errors import TaskError
from tbactl.sft.examples import IGNORED_LABEL, ExampleStream, encode_example, micro_batches, mixed_texts
from tbactl.sft.tokenizer import train_tokenizer

TEXTS = ["There are 36 red apples and 104 green ones.\n#### 140", "Problem: 5 * 3 = 15", "caf\u00e9 costs \u20ac7"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 20, vocabulary_size=320, max_tokens=64)


def counting_source(kind, seed):
    for number in count():
        yield f"{kind} {seed} prompt {number}:\n", "x" * (1 + number % 7)


@pytest.mark.parametrize("text", [*TEXTS, "  two  spaces\n\n\ttab ", "unseen \u4f60\u597d <|x|> 007"])
def test_tokenizer_any_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_numbers_split_into_single_digits(tokenizer):
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("104 apples cost 36*2=72")]
    assert [piece for piece in pieces if any(character.isdigit() for character in piece)] == list("10436272")


def test_tokenizer_saved_loads_with_auto_tokenizer(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert [loaded.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert (loaded.eos_token_id, loaded.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_mixed_texts_shares_follow_the_mixture():
    pairs = list(islice(mixed_texts(counting_source, mixture={"a": 0.3, "b": 0.7, "c": 0.0}, seed=1), 2000))
    kinds = [prompt.split()[0] for prompt, _ in pairs]
    assert set(kinds) == {"a", "b"}
    assert kinds.count("a") / len(kinds) == pytest.approx(0.3, abs=0.04)  # four standard errors


def test_mixed_texts_kinds_get_streams_of_their_own_that_depend_on_the_seed():
    def seeds(seed):
        pairs = islice(mixed_texts(counting_source, mixture={"a": 1, "b": 1}, seed=seed), 50)
        return {tuple(prompt.split()[:2]) for prompt, _ in pairs}

    assert seeds(1) == seeds(1)
    assert not seeds(1) & seeds(2)
    assert len({seed for _, seed in seeds(1)}) == 2


def test_encode_example_eos_supervised_exactly_once(tokenizer):
    example = encode_example(("3 + 4\n", "7"), tokenizer=tokenizer)
    assert example.token_ids[: example.prompt_length] == tuple(tokenizer.encode("3 + 4\n"))
    assert example.token_ids[example.prompt_length :] == (*tokenizer.encode("7"), tokenizer.eos_token_id)
    assert example.token_ids.count(tokenizer.eos_token_id) == 1


def test_micro_batches_labels_are_the_next_completion_tokens(tokenizer):
    stream = ExampleStream(counting_source("a", 0), tokenizer=tokenizer, max_tokens=64)
    examples = stream.next_step(400)
    batches = micro_batches(examples, max_tokens=120)
    supervised = []
    for batch in batches:
        assert batch.input_ids.numel() <= 120
        assert (batch.labels[:, : batch.first_label] == IGNORED_LABEL).all()
        for ids, labels in zip(batch.input_ids, batch.labels, strict=True):
            positions = (labels != IGNORED_LABEL).nonzero().flatten()
            assert torch.equal(torch.diff(positions), torch.ones(len(positions) - 1, dtype=torch.int64))
            # Every supervised token but EOS is also the input of the next position.
            assert torch.equal(ids[positions[:-1] + 1], labels[positions[:-1]])
            assert labels[positions[-1]] == tokenizer.eos_token_id
            supervised.append(tuple(labels[positions].tolist()))
    assert sorted(supervised) == sorted(example.token_ids[example.prompt_length :] for example in examples)


def test_micro_batches_example_above_the_budget_gets_a_pass_of_its_own(tokenizer):
    example = encode_example(("prompt", "a long completion"), tokenizer=tokenizer)
    assert [len(batch.input_ids) for batch in micro_batches([example] * 3, max_tokens=1)] == [1, 1, 1]


def test_example_stream_skip_continues_where_the_other_stopped(tokenizer):
    whole = ExampleStream(counting_source("a", 0), tokenizer=tokenizer, max_tokens=64)
    whole.next_step(300)
    rest = ExampleStream(counting_source("a", 0), tokenizer=tokenizer, max_tokens=64, skip=whole.num_drawn)
    assert rest.next_step(300) == whole.next_step(300)


def test_example_stream_too_long_examples_are_left_out_and_counted(tokenizer):
    def source():
        for number in count():
            yield "p", "x y z " * (50 if number % 3 == 0 else 1)

    stream = ExampleStream(source(), tokenizer=tokenizer, max_tokens=40)
    assert all(len(example.token_ids) <= 40 for example in stream.next_step(300))
    assert stream.num_too_long == pytest.approx(stream.num_drawn / 3, abs=1)


def test_example_stream_only_too_long_examples_raises(tokenizer):
    stream = ExampleStream(counting_source("a", 0), tokenizer=tokenizer, max_tokens=1)
    with pytest.raises(TaskError, match="max_tokens = 1"):
        stream.next_step(10)
