"""A reference policy that follows the trained one: by resets (TBA', arXiv 2503.18929, section 6), or as an average.

Before this file on the way of a trajectory: the optimizer step in `update.py`. After it: the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tbactl.config.sections import ReferenceSection
from tbactl.errors import CheckpointError
from tbactl.trainer.deepspeed_backend import DeepSpeedBackend
from tbactl.trainer.reference import ReferenceScorer
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.weights_file import write_safetensors

FACTS_FILE = "reference.json"
WEIGHTS_FILE = "reference.safetensors"


class MovingReference:
    """Changes the reference policy after every `period`-th optimizer step; with kind `initial` it never does.

    All ranks call every method: under ZeRO-3 parameters of the policy are gathered, one by one. The reference is whole
    on every rank, and the same. An average is kept in float32 at least: bfloat16 would round its small moves away.

    Args:
        section: the settings.
        policy: the trained model, as DeepSpeed holds it.
        reference: its weights are changed in place, and what it remembers of the old ones is forgotten.
        backend: counts the optimizer's steps, gathers parameters.
    """

    def __init__(
        self,
        section: ReferenceSection,
        *,
        policy: torch.nn.Module,
        reference: ReferenceScorer,
        backend: DeepSpeedBackend,
    ) -> None:
        self._section = section
        self._policy = policy
        self._reference = reference
        self._weights = reference.weights
        self._backend = backend
        self._averages: dict[str, Tensor] = {}
        if section.kind == "ema":
            self._averages = {name: _at_least_float32(tensor.detach()) for name, tensor in self._weights.items()}

    @property
    def num_updates(self) -> int:
        """How often the reference was changed since the run began, before a resume included."""
        return 0 if self._section.kind == "initial" else self._backend.num_steps // self._section.period

    @torch.no_grad()
    def after_step(self) -> None:
        """An optimizer step has been done: change the reference if it is time."""
        if self._section.kind == "initial" or self._backend.num_steps % self._section.period:
            return
        for name, policy in self._policy_parameters():
            if self._section.kind == "ema":
                decay = self._section.ema_decay
                self._averages[name].mul_(decay).add_(policy.to(self._averages[name].dtype), alpha=1.0 - decay)
                policy = self._averages[name]
            self._weights[name].copy_(policy)
        self._reference.forget()
        if self._section.kind == "reset" and self._section.resets_optimizer:
            self._backend.forget_averages()

    def save(self, directory: Path, *, is_writer: bool) -> None:
        """Write settings and, once they differ from the initial policy's, weights. One rank is the writer."""
        if not is_writer:
            return
        facts: dict[str, Any] = {"settings": self._settings(), "fingerprint": None}
        if self.num_updates:
            write_safetensors(directory / WEIGHTS_FILE, self._state())
            facts["fingerprint"] = fingerprint(directory / WEIGHTS_FILE)
        (directory / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """The reverse of `save`, into a learner that has just been made.

        Raises:
            CheckpointError: the run that wrote it had other settings of the reference, or a file is damaged.
        """
        try:
            facts = json.loads((directory / FACTS_FILE).read_bytes())
            settings, expected = facts["settings"], facts["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{directory / FACTS_FILE}: cannot be read: {error!r}.") from error
        if settings != self._settings():
            raise CheckpointError(
                f"{directory} cannot be continued with these settings of the reference: they were "
                f"{_listed(settings)}, they are {_listed(self._settings())}. Use the run's own, or start a new run."
            )
        if expected is None:
            return
        weights = _read_weights(directory / WEIGHTS_FILE, expected=expected)
        for name, tensor in self._state().items():
            tensor.copy_(weights[name])
            self._weights[name].copy_(tensor)

    def _policy_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._policy.named_parameters():
            with self._backend.whole_parameters([parameter]):
                yield name, parameter.detach()

    def _state(self) -> Mapping[str, Tensor]:
        """What a checkpoint must hold: the averages, or the reference itself."""
        return self._averages or self._weights

    def _settings(self) -> dict[str, Any]:
        """Those that have an effect."""
        of_kind = {"initial": (), "reset": ("period", "resets_optimizer"), "ema": ("period", "ema_decay")}
        names = ("kind", *of_kind[self._section.kind])
        return {f"reference.{name}": getattr(self._section, name) for name in names}


def _at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself where its type is fine enough."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _read_weights(path: Path, *, expected: str) -> dict[str, Tensor]:
    try:
        found = fingerprint(path)
        if found != expected:
            raise CheckpointError(f"{path} is damaged: its fingerprint is {found}, it was written with {expected}.")
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error


def _listed(settings: Any) -> str:
    pairs = settings.items() if isinstance(settings, dict) else ()
    return ", ".join(f"{name} = {value}" for name, value in pairs)
