"""A policy whose every completion can be counted: strings over four symbols, of bounded length, and all about them.

    strings      what a policy can say: a symbol again and again until EOS, or until the length is used up
    policy       a transformer in Llama's shape over five tokens, with random weights, which is the reference as well
    rewards      a random table of symbol pairs for each prompt
    target       pi_ref exp(r / beta) / Z, by summing over all strings
    uniform_data what a fixed behaviour policy says that draws each token from all five alike

Nothing here is estimated: probabilities are sums over the whole space, at the training temperature.
Letters in the shapes: `prompts`, `strings` (in the order of `strings()`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tbactl.types import Completion, Trajectory, TrajectoryGroup

SYMBOLS = "abcd"
EOS = len(SYMBOLS)
GROUP_SIZE = 100
ROPE_THETA = 10.0


@dataclass(frozen=True, kw_only=True)
class Space:
    """Strings of up to `max_length` symbols, answered to one-symbol prompts, and what they earn.

    Attributes:
        max_length: a string that is as long ends without EOS.
        num_prompts: the first so many symbols.
        beta: KL coefficient.
        temperature: of policy and reference.
        seed: of rewards, reference and data.
    """

    max_length: int = 5
    num_prompts: int = 3
    beta: float = 0.1
    temperature: float = 0.7
    seed: int = 0

    @cached_property
    def strings(self) -> list[tuple[int, ...]]:
        """All of them, short ones first: 1 + 4 + ... + 4^max_length."""
        lengths = range(self.max_length + 1)
        return [symbols for length in lengths for symbols in itertools.product(range(EOS), repeat=length)]

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Token ids of each prompt. EOS, which precedes nothing else, shows a policy where a text begins."""
        return [(EOS, symbol) for symbol in range(self.num_prompts)]

    @cached_property
    def rewards(self) -> Tensor:
        """[prompts, strings], float64: one unit of beta for each symbol, and a random amount for each pair.

        The pairs are those of neighbours, the prompt before the first; each prompt has its own table. So one changed
        symbol makes a string several times more or less probable, and no reward is like another.
        """
        rng = np.random.default_rng([self.seed, 1])
        tables = rng.normal(size=(self.num_prompts, EOS, EOS))
        rows = []
        for (_, prompt), table in zip(self.prompts, tables, strict=True):
            pairs = [[table[a, b] for a, b in itertools.pairwise((prompt, *string))] for string in self.strings]
            rows.append([sum(0.5 * value + 1.0 for value in values) for values in pairs])
        return self.beta * torch.tensor(rows, dtype=torch.float64)

    def target_logprobs(self, reference_logprobs: Tensor) -> Tensor:
        """Log of pi_ref exp(r / beta) / Z; [prompts, strings]."""
        return (reference_logprobs + self.rewards / self.beta).log_softmax(dim=1)

    def expected_reward(self, logprobs: Tensor) -> float:
        """Of a policy; mean over prompts."""
        return float((logprobs.exp() * self.rewards).sum(dim=1).mean())

    @torch.no_grad()
    def logprobs(self, policy: LlamaForCausalLM) -> Tensor:
        """Log-probs of all strings under a policy; [prompts, strings], float64. Each row sums to one in probability.

        One forward pass over the strings that are one symbol short of the longest: theirs and their beginnings' next
        tokens are all there is.
        """
        longest = torch.tensor(list(itertools.product(range(EOS), repeat=self.max_length - 1)))
        rows = []
        for prompt in self.prompts:
            ids = torch.cat([torch.tensor(prompt).expand(len(longest), -1), longest], dim=1)
            logits = policy(input_ids=ids, use_cache=False).logits[:, len(prompt) - 1 :].double()
            next_logprobs = (logits / self.temperature).log_softmax(dim=-1)
            rows.append(self._of_strings(next_logprobs))
        return torch.stack(rows)

    def _of_strings(self, next_logprobs: Tensor) -> Tensor:
        """From next-token log-probs [longest, places, tokens] to those of strings, by length."""
        prefixes = torch.zeros(1, dtype=torch.float64)
        finished = []
        for length in range(self.max_length):
            # The first of all rows that begin with the same `length` symbols speaks for them.
            after = next_logprobs[:: EOS ** (self.max_length - 1 - length), length]
            finished.append(prefixes + after[:, EOS])
            prefixes = (prefixes[:, None] + after[:, :EOS]).flatten()
        return torch.cat([*finished, prefixes])

    def uniform_data(self, *, num_draws: int) -> Iterator[TrajectoryGroup]:
        """`num_draws` completions of each prompt by the uniform behaviour policy, in groups.

        Each token is drawn from the four symbols and EOS alike, whatever came before. So every string has a positive
        probability, at least 5^-max_length.
        """
        rng = np.random.default_rng([self.seed, 2])
        index = {string: number for number, string in enumerate(self.strings)}
        for number in range(math.ceil(num_draws / GROUP_SIZE)):
            for prompt_id, prompt in enumerate(self.prompts):
                drawn = [self._uniform_string(rng) for _ in range(GROUP_SIZE)]
                position = number * self.num_prompts + prompt_id
                yield TrajectoryGroup(
                    prompt_id=prompt_id,
                    prompt_text=SYMBOLS[prompt_id],
                    prompt_token_ids=prompt,
                    trajectories=tuple(
                        Trajectory(
                            uid=position * GROUP_SIZE + place,
                            completion=self._completion(string),
                            reward=float(self.rewards[prompt_id, index[string]]),
                        )
                        for place, string in enumerate(drawn)
                    ),
                    searcher=0,
                    sequence_number=position,
                    stream_position=position + 1,
                )

    def _uniform_string(self, rng: np.random.Generator) -> tuple[int, ...]:
        tokens = rng.integers(EOS + 1, size=self.max_length).tolist()
        return tuple(tokens[: tokens.index(EOS)] if EOS in tokens else tokens)

    def _completion(self, string: tuple[int, ...]) -> Completion:
        is_stopped = len(string) < self.max_length
        ids = (*string, EOS) if is_stopped else string
        return Completion(
            token_ids=ids,
            logprobs=(-math.log(EOS + 1),) * len(ids),
            text="".join(SYMBOLS[symbol] for symbol in string),
            finish_reason="stop" if is_stopped else "length",
        )


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """Half the sum of |p - q| over strings, for each prompt; both given as log-probs [prompts, strings]."""
    return 0.5 * (a.exp() - b.exp()).abs().sum(dim=1)


def mean_kl(a: Tensor, b: Tensor) -> float:
    """KL(a || b) in nats, both log-probs [prompts, strings]; mean over prompts."""
    return float((a.exp() * (a - b)).sum(dim=1).mean())


def write_policy(directory: Path, *, seed: int, hidden_size: int = 64, num_layers: int = 2) -> Path:
    """Write a random policy over the five tokens in Hugging Face form.

    Its weights are scaled so that no layer is negligible, and next tokens are clearly not uniform.
    """
    vocabulary = {symbol: i for i, symbol in enumerate((*SYMBOLS, "<eos>"))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                scale = 1.0 if "embed" in name else (0.4 if "lm_head" in name else 1.0) / math.sqrt(parameter.shape[1])
                parameter.normal_(0.0, scale)
    model.save_pretrained(directory)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(directory)
    return directory
