"""Trains all weights of a sequence classifier on comparisons: the reward models of RLHF (arXiv 2203.02155, eq. 1)."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_cosine_schedule_with_warmup,
)

from tbactl.config.reward import RewardConfig, RewardTrainingSection
from tbactl.engines.missing_weights import check_weights, missing_weights
from tbactl.errors import ConfigError
from tbactl_preference.reward_bradley_terry import bradley_terry_loss
from tbactl_preference.reward_classifier import ClassifierReward, last_token_scores, load_tokenizer, use_best_device
from tbactl_preference.reward_head import Array
from tbactl_preference.reward_pairs import PreferencePair

logger = logging.getLogger(__name__)


class TrainedClassifier:
    """A sequence classifier, trained; `TrainedReward`."""

    def __init__(self, reward: ClassifierReward) -> None:
        self.reward = reward
        self.num_parameters = reward.model.num_parameters()

    def margins(self, pairs: Sequence[PreferencePair]) -> Array:
        """Log-odds that the chosen text is the better one, shape (pairs,)."""
        prompts = [pair.prompt for pair in pairs]
        chosen = self.reward.score(prompts, [pair.chosen for pair in pairs])
        rejected = self.reward.score(prompts, [pair.rejected for pair in pairs])
        return np.array(chosen) - np.array(rejected)

    def save(self, directory: Path) -> None:
        """Model and tokenizer in Hugging Face form; the tokenizer says how much of a text the model was measured on."""
        self.reward.tokenizer.model_max_length = self.reward.max_tokens
        self.reward.model.save_pretrained(directory)
        self.reward.tokenizer.save_pretrained(directory)


def fine_tuned(config: RewardConfig, pairs: Sequence[PreferencePair]) -> TrainedClassifier:
    """Train from `model.path`.

    Raises:
        ConfigError: it cannot be loaded, or lacks weights.
    """
    assert config.model.path is not None
    torch.manual_seed(config.seed)
    model, tokenizer = _start(config.model.path)
    use_best_device(model)
    reward = ClassifierReward(model, tokenizer, max_tokens=config.training.max_tokens)
    _train(reward, pairs, settings=config.training, seed=config.seed)
    model.eval()
    return TrainedClassifier(reward)


def _start(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    source = str(Path(path).expanduser()) if path.startswith("~") else path
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source, dtype=torch.float32, num_labels=1, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"model.path = '{path}': cannot be loaded as a sequence classifier: {error}") from error
    # What scores is trained from random weights, and so is what pools for it: a language model has neither.
    body = f"{model.base_model_prefix}."
    check_weights(f"model.path = '{path}'", missing_weights(info, below=body, unused=(f"{body}pooler.",)))
    return model, load_tokenizer(source)


def _train(
    reward: ClassifierReward, pairs: Sequence[PreferencePair], *, settings: RewardTrainingSection, seed: int
) -> None:
    model = reward.model.train()
    num_steps = math.ceil(settings.num_epochs * len(pairs) / settings.batch_pairs)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.95)
    )
    schedule = get_cosine_schedule_with_warmup(
        optimizer, num_warmup_steps=round(settings.warmup_fraction * num_steps), num_training_steps=num_steps
    )
    batches = _batches(pairs, size=settings.batch_pairs, seed=seed)
    for step in range(1, num_steps + 1):
        batch = next(batches)
        loss, accuracy = _accumulate(reward, batch, micro_batch=settings.micro_batch_pairs)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm or math.inf)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        logger.info("step=%d/%d loss=%.4f accuracy=%.3f", step, num_steps, loss, accuracy)


def _accumulate(reward: ClassifierReward, batch: Sequence[PreferencePair], *, micro_batch: int) -> tuple[float, float]:
    """Gradients of the batch's mean loss; returns that loss and the share of pairs in the right order."""
    total, num_right = 0.0, 0
    for start in range(0, len(batch), micro_batch):
        part = batch[start : start + micro_batch]
        # Chosen and rejected in one forward pass: dropout and kernels treat them alike.
        rows = [reward.token_ids(pair.prompt, pair.chosen) for pair in part]
        rows += [reward.token_ids(pair.prompt, pair.rejected) for pair in part]
        scores = last_token_scores(reward.model, rows).float()
        chosen, rejected = scores[: len(part)], scores[len(part) :]
        loss = bradley_terry_loss(chosen, rejected)
        (loss * len(part) / len(batch)).backward()
        total += loss.item() * len(part)
        num_right += int((chosen > rejected).sum())
    return total / len(batch), num_right / len(batch)


def _batches(pairs: Sequence[PreferencePair], *, size: int, seed: int) -> Iterator[list[PreferencePair]]:
    """Endless batches; each pass over the pairs has its own order, and no pair is left out."""
    waiting: list[PreferencePair] = []
    epoch = 0
    while True:
        while len(waiting) < min(size, len(pairs)):
            order = list(pairs)
            random.Random(f"{seed}/{epoch}").shuffle(order)
            waiting += order
            epoch += 1
        yield waiting[:size]
        del waiting[:size]
