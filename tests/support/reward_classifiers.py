"""Tiny random sequence classifiers with a tokenizer of a few words, as directories."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPTNeoXConfig,
    GPTNeoXForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

WORDS = ["<eos>", "<unk>", "<pad>", "[CLS]", "[SEP]", *"cats dogs sleep run a poem . the on mat".split()]  # noqa: SIM905
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
POSITIONS = 24
MODELS = {
    "gpt-neox": lambda **more: GPTNeoXForSequenceClassification(GPTNeoXConfig(**more)),
    "llama": lambda **more: LlamaForSequenceClassification(LlamaConfig(num_key_value_heads=2, **more)),
    "bert": lambda **more: BertForSequenceClassification(BertConfig(**more)),
}


def build_classifier(
    directory, *, kind="gpt-neox", num_labels=1, pad="none", padding_side="right", with_tokenizer=True
):
    """A random model of two layers that knows a few words, as a directory."""
    torch.manual_seed(1)
    model = MODELS[kind](
        vocab_size=len(WORDS), max_position_embeddings=POSITIONS, num_labels=num_labels, pad_token_id=None, **SIZES
    )
    for parameter in model.parameters():  # far from the small random start, so that scores differ visibly
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(directory)
    if with_tokenizer:
        tokenizer(pad=pad, padding_side=padding_side, kind=kind).save_pretrained(directory)
    return str(directory)


def remove_weights(directory, part):
    """Of a saved model, those whose name holds `part`."""
    file = Path(directory, "model.safetensors")
    kept = {name: tensor for name, tensor in load_file(file).items() if part not in name}
    save_file(kept, file, metadata={"format": "pt"})


def tokenizer(*, pad, padding_side, kind):
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>"}
    if kind == "bert":
        special |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "<pad>"}
        pieces = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
        inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=pieces)
    else:
        special |= {"eos_token": "<eos>"} | {"none": {}, "eos": {"pad_token": "<eos>"}, "own": {"pad_token": "<pad>"}}[
            pad
        ]
    return PreTrainedTokenizerFast(tokenizer_object=inner, padding_side=padding_side, **special)
