"""The trainer's heavy half with a real model: groups in, optimizer step done, metrics out.

Rank 0 is driven by `loop.py` through the `Learner` protocol. It passes every call on to the other ranks, which sit in
`serve`, and all carry it out together: under ZeRO a forward pass, a save or an export is a collective operation.

Before this file on the way of a trajectory: `loop.py`. After it: `update.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from tbactl import registry
from tbactl.checkpoints.consolidate import FACTS_FILE, POLICY_CONFIG
from tbactl.config.layout import ProcessConfig
from tbactl.errors import CheckpointError, ConfigError
from tbactl.ipc.codec import decode, encode
from tbactl.objectives.batch import Objective, ObjectiveBatch
from tbactl.protocols import ProbeBatch
from tbactl.trainer.collate import collate
from tbactl.trainer.deepspeed_backend import DeepSpeedBackend, accelerator_device
from tbactl.trainer.policy import LoadedPolicy, export_policy, load_policy
from tbactl.trainer.ranks import Command, RankGroup
from tbactl.trainer.reference import ReferenceScorer
from tbactl.trainer.scoring import ScoringModel, check_scoring, score_only_group
from tbactl.trainer.update import Updater
from tbactl.types import TrajectoryGroup
from tbactl.weight_sync.weights_file import write_safetensors

logger = logging.getLogger(__name__)

RNG_FILE = "torch_rng.safetensors"


class DeepSpeedLearner:
    """Policy, frozen reference and DeepSpeed engine of one trainer rank. Implements `Learner`.

    Args:
        config: of this rank. The reference policy is always the initial policy, also after a resume.

    Raises:
        ConfigError: the policy cannot be loaded, or its architecture is not supported.
        ChildFailedError: the other ranks did not come.
    """

    def __init__(self, config: ProcessConfig) -> None:
        run = config.run
        if run.trainer.options:
            raise ConfigError(
                f"trainer.options: the learner 'deepspeed' has none, got {', '.join(sorted(run.trainer.options))}; its "
                f"settings are keys of `trainer` itself."
            )
        disable_progress_bar()
        self._run = run
        self._ranks = RankGroup(config, device=accelerator_device())
        torch.manual_seed(run.seed)
        self._policy = load_policy(run.policy, directory=config.policy_directory)
        objective: Objective = registry.load("tbactl.objectives", run.objective.kind)(**run.objective.options)
        check_required_fields(objective, kind=run.objective.kind)
        model = self._scoring_model(self._policy)
        model.to(accelerator_device())
        shares_prompt = check_scoring(model)
        reference_model = self._scoring_model(load_policy(run.policy, directory=config.policy_directory))
        reference_model.requires_grad_(False).to(accelerator_device())
        reference = ReferenceScorer(reference_model, capacity=run.replay.capacity, shares_prompt=shares_prompt)
        # What is recomputed in the backward pass would be appended to the cache a second time.
        shares_prompt = shares_prompt and not run.trainer.gradient_checkpointing
        if run.trainer.gradient_checkpointing:
            self._policy.model.train()
            self._policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._names: dict[str, Tensor] = dict(self._policy.model.state_dict(keep_vars=True))
        self._backend = DeepSpeedBackend(model, run=run)
        self._updater = Updater(
            run.trainer,
            backend=self._backend,
            reference=reference,
            objective=objective,
            ranks=self._ranks,
            shares_prompt=shares_prompt,
        )
        logger.info(
            "policy=%s parameters=%d shares_prompt=%s zero_stage=%d ranks=%d",
            type(self._policy.model).__name__,
            sum(parameter.numel() for parameter in reference_model.parameters()),
            shares_prompt,
            run.trainer.zero_stage,
            self._ranks.size,
        )

    def _scoring_model(self, policy: LoadedPolicy) -> ScoringModel:
        return ScoringModel(
            policy.model,
            temperature=self._run.searchers.temperature,
            chunk_tokens=self._run.trainer.logprob_chunk_tokens,
        )

    # What rank 0 is asked --------------------------------------------------------------------------------------------

    def update(
        self, groups: Sequence[TrajectoryGroup], *, beta: float, should_abort: Callable[[], bool]
    ) -> dict[str, float]:
        """One optimizer step; `should_abort` is asked before each micro-batch."""
        if self._ranks.size > 1:
            records = [encode(group) for group in groups]
            arguments = {"beta": beta, "sizes": [len(record) for record in records]}
            self._ranks.send(Command(name="update", arguments=arguments, blob=b"".join(records)))
        return self._updater.update(groups, beta=beta, should_abort=should_abort)

    def probe_logprobs(self, probe: ProbeBatch) -> list[tuple[float, ...]]:
        """Log-probs at temperature 1."""
        self._ranks.send(Command(name="probe", arguments={"sequences": probe.sequences}))
        return self._probe(probe.sequences)

    def export_policy(self, directory: Path) -> None:
        """Write and verify the policy in Hugging Face form."""
        self._ranks.send(Command(name="collect"))
        weights = self._collect()
        export_policy(self._policy, directory, weights=weights, trust_remote_code=self._run.policy.trust_remote_code)

    def write_weights(self, path: Path) -> None:
        """Write all parameters as one safetensors file."""
        self._ranks.send(Command(name="collect"))
        write_safetensors(path, self._collect())

    def save(self, directory: Path) -> None:
        """Write what an exact resume needs, and the policy's config and tokenizer beside it."""
        self._ranks.send(Command(name="save", arguments={"directory": str(directory)}))
        self._save(directory)

    def load(self, directory: Path) -> None:
        """The reverse of `save`."""
        self._ranks.send(Command(name="load", arguments={"directory": str(directory)}))
        self._load(directory)

    def close(self) -> None:
        """Release the other ranks and leave the process group."""
        if self._ranks.rank == 0:
            self._ranks.send(Command(name="stop"))
        self._backend.close()
        self._ranks.close()

    # What the other ranks do -----------------------------------------------------------------------------------------

    def serve(self, *, while_waiting: Callable[[], object]) -> None:
        """Ranks above 0: carry out what rank 0 is asked, until it closes.

        Args:
            while_waiting: called again and again between commands, and before each micro-batch; reports that this
                rank is alive.
        """

        def report_progress() -> bool:
            # Whether to abort is rank 0's to say.
            while_waiting()
            return False

        while True:
            command = self._ranks.receive(while_waiting=while_waiting)
            arguments = command.arguments
            match command.name:
                case "update":
                    groups = _split(command.blob, arguments["sizes"])
                    self._updater.update(groups, beta=arguments["beta"], should_abort=report_progress)
                case "probe":
                    self._probe([(tuple(ids), length) for ids, length in arguments["sequences"]])
                case "collect":
                    self._collect()
                case "save":
                    self._save(Path(arguments["directory"]))
                case "load":
                    self._load(Path(arguments["directory"]))
                case "stop":
                    return
                case unknown:
                    raise AssertionError(f"unknown command {unknown}")

    # What all ranks do together --------------------------------------------------------------------------------------

    def _probe(self, sequences: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[float, ...]]:
        scores = []
        for ids, prompt_length in sequences:
            group = score_only_group(list(ids[:prompt_length]), [list(ids[prompt_length:])])
            batch = collate([group], shares_prompt=False).to(self._backend.device)
            with torch.no_grad():
                scores.append(tuple(self._backend.logprobs(batch, temperature=1.0)[0].tolist()))
        return scores

    def _collect(self) -> dict[str, Tensor]:
        """The state dict on the CPU, rank 0 only; under ZeRO-3 gathered one by one. Tied names share one tensor."""
        weights: dict[str, Tensor] = {}
        copies: dict[int, Tensor] = {}
        for name, tensor in self._names.items():
            gathered = [tensor] if isinstance(tensor, torch.nn.Parameter) else []
            with self._backend.whole_parameters(gathered):
                if self._ranks.rank == 0:
                    if id(tensor) not in copies:
                        copies[id(tensor)] = tensor.detach().cpu().clone()
                    weights[name] = copies[id(tensor)]
        return weights

    def _save(self, directory: Path) -> None:
        if self._ranks.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            self._policy.model.config.save_pretrained(directory / POLICY_CONFIG)
            self._policy.tokenizer.save_pretrained(directory / POLICY_CONFIG)
            (directory / FACTS_FILE).write_text(json.dumps(self._facts(), indent=2) + "\n")
        self._ranks.barrier()
        self._backend.save(directory)
        save_file(_rng_states(), directory / f"rank{self._ranks.rank}-{RNG_FILE}")
        self._ranks.barrier()

    def _facts(self) -> dict[str, Any]:
        trainer = self._run.trainer
        return {"num_ranks": trainer.num_ranks, "zero_stage": trainer.zero_stage, "dtype": self._run.policy.dtype}

    def _load(self, directory: Path) -> None:
        try:
            facts = json.loads((directory / FACTS_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{directory / FACTS_FILE}: cannot be read: {error}") from error
        different = {
            name: (facts.get(name), value) for name, value in self._facts().items() if facts.get(name) != value
        }
        if different:
            listing = "; ".join(f"{name} was {old}, is {new}" for name, (old, new) in different.items())
            raise CheckpointError(f"{directory} cannot be continued with these settings: {listing}.")
        self._backend.load(directory)
        _restore_rng_states(load_file(directory / f"rank{self._ranks.rank}-{RNG_FILE}"))


def check_required_fields(objective: Objective, *, kind: str) -> None:
    """Whether a batch holds all that an objective reads.

    Raises:
        ConfigError: it does not.
    """
    known = {field.name for field in fields(ObjectiveBatch)}
    unknown = sorted(objective.required_fields - known)
    if unknown:
        raise ConfigError(
            f"objective.kind: '{kind}' requires {', '.join(unknown)}; a batch holds {', '.join(sorted(known))}. "
            f"Correct its required_fields, or use an objective made for this version of tbactl."
        )


def _split(blob: bytes, sizes: Sequence[int]) -> list[TrajectoryGroup]:
    groups = []
    start = 0
    for size in sizes:
        group = decode(blob[start : start + size])
        assert isinstance(group, TrajectoryGroup)
        groups.append(group)
        start += size
    return groups


def _rng_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_rng_states(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
