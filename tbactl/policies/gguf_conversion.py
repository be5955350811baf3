"""`python -m tbactl.policies.gguf_conversion FILE.gguf DIRECTORY`: a GGUF file in Hugging Face form.

The weights are written in float32, not in half precision: a dequantised weight is a small integer times a scale plus an
offset, which float16 rounds. So the directory gives exactly the log-probs of the GGUF file, and trainer, searchers and
reference map the same pages of one file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

_PROBE_TEXT = "The quick brown fox jumps over the lazy dog."


def convert(file: Path, directory: Path) -> None:
    """Write model, configuration and tokenizer of a GGUF file, and check that what was written is the same.

    transformers refuses to save a model that it loaded from GGUF ("quantized"), although its weights are plain by then:
    they go into a new model whose configuration does not say so.

    Args:
        file: a language model that transformers can read.
        directory: made; must not exist.
    """
    original = load_gguf(file)
    settings = original.config.to_dict() | {"dtype": torch.float32}
    settings.pop("quantization_config", None)
    config = type(original.config).from_dict(settings)
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(original.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # An end-of-text token of its own list would be one that the tokenizer does not stand for.
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=eos, pad_token_id=eos if pad is None else pad
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    _verify(original, directory)


def load_gguf(file: Path) -> PreTrainedModel:
    """The model as transformers reads it from the file, dequantised to float32."""
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()


def _verify(original: PreTrainedModel, directory: Path) -> None:
    written = AutoModelForCausalLM.from_pretrained(directory).eval()
    for name, tensor in original.state_dict().items():
        if not torch.equal(tensor, written.state_dict()[name]):
            raise RuntimeError(f"{directory}: the tensor {name} is not the one of the GGUF file")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    token_ids = torch.tensor([tokenizer.encode(_PROBE_TEXT)])
    with torch.inference_mode():
        if not torch.equal(original(token_ids).logits, written(token_ids).logits):
            raise RuntimeError(f"{directory}: its logits are not those of the GGUF file")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
