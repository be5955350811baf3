from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tbactl.engines.sentence_encoder import SentenceEncoder
from tbactl.errors import ConfigError
from tbactl.policies.packaged_encoder import packaged_encoder
from tests.support.reward_classifiers import remove_weights

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cats", "dogs", "sleep", "run", "a", "poem"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random BERT of two layers that knows ten words."""
    path = tmp_path_factory.mktemp("encoder")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=10**30
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
    )
    BertModel(config).save_pretrained(path)
    return path


@pytest.fixture
def encoder(directory):
    return SentenceEncoder(str(directory))


def test_vectors_are_float32_and_of_length_one_in_the_order_of_the_texts(encoder):
    texts = ["cats sleep", "a poem", "dogs run a poem cats"]
    vectors = encoder(texts)
    assert vectors.shape == (3, 16) and vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        assert encoder([text])[0] == pytest.approx(vector, abs=1e-5), "padding must not count"


def test_vector_is_the_mean_of_the_last_hidden_states(encoder, directory):
    model = BertModel.from_pretrained(directory).eval()
    with torch.no_grad():
        hidden = model(torch.tensor([[2, 4, 6, 3]])).last_hidden_state[0].mean(dim=0)
    assert encoder(["cats sleep"])[0] == pytest.approx((hidden / hidden.norm()).numpy(), abs=1e-5)


def test_more_texts_than_a_batch_and_texts_longer_than_the_model(encoder):
    texts = ["cats " * (number % 30 + 1) for number in range(150)]
    vectors = encoder(texts)
    assert vectors.shape == (150, 16)
    assert vectors[29] == pytest.approx(vectors[59], abs=1e-5)
    assert vectors[29] == pytest.approx(vectors[20], abs=1e-5), "both are cut to the model's twelve positions"


def test_empty_text_is_encoded_by_its_special_tokens(encoder):
    assert np.linalg.norm(encoder([""]), axis=1) == pytest.approx(1.0, abs=1e-6)


def test_no_texts_give_no_vectors(encoder):
    assert encoder([]).shape == (0, 16)


def test_loading_and_encoding_leave_torchs_generator_alone(directory):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    SentenceEncoder(str(directory))(["cats"])
    assert torch.equal(torch.rand(3), expected)


def test_encoder_that_does_not_exist_blames_the_setting(tmp_path):
    with pytest.raises(ConfigError, match=r"replay\.embedder = "):
        SentenceEncoder(str(tmp_path / "nowhere"))(["text"])


def test_encoder_of_a_package_that_is_not_installed_blames_the_setting(monkeypatch):
    monkeypatch.setattr("tbactl.policies.packaged_encoder.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^replay\.embedder = 'package:[^']*': the sentence encoder"):
        SentenceEncoder("package:all-minilm-l6-v2")(["text"])


def test_encoder_of_a_package_is_its_directory():
    source = "package:all-minilm-l6-v2"
    texts = ["cats sleep", "a pirate's hat"]
    assert np.array_equal(SentenceEncoder(source)(texts), SentenceEncoder(str(packaged_encoder(source)))(texts))


def test_encoder_without_its_tokenizer_is_refused_for_all_texts_would_be_alike(directory, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(directory / name, tmp_path)
    with pytest.raises(ConfigError, match=r"replay\.embedder = .*tokenizer"):
        SentenceEncoder(str(tmp_path))(["cats sleep"])


def test_encoder_that_lacks_a_layer_is_refused_and_one_that_lacks_the_pooler_is_not(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    remove_weights(tmp_path, "pooler")
    texts = ["cats sleep", "a poem"]
    assert np.array_equal(SentenceEncoder(str(tmp_path))(texts), SentenceEncoder(str(directory))(texts))
    remove_weights(tmp_path, "layer.1.")
    with pytest.raises(ConfigError, match=r"replay\.embedder = .* is incomplete: it lacks the weights .*layer\.1\."):
        SentenceEncoder(str(tmp_path))(texts)


def test_buffer_without_embeddings_imports_no_torch():
    code = "import sys, tbactl.trainer.buffers; sys.exit('torch' in sys.modules or 'rapidfuzz' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
