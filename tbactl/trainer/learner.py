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

from tbactl.adapters import Adapter
from tbactl.checkpoints.consolidate import FACTS_FILE, POLICY_CONFIG
from tbactl.config.layout import CheckpointLayout, ProcessConfig
from tbactl.config.objectives import build_objective
from tbactl.config.problems import show_value
from tbactl.engines.policy_files import stop_token_ids
from tbactl.errors import CheckpointError, ConfigError
from tbactl.ipc.codec import decode, encode
from tbactl.matmul import use_full_vector_width
from tbactl.objectives.batch import Objective, ObjectiveBatch
from tbactl.objectives.schedules import training_temperature
from tbactl.protocols import ProbeBatch, UpdateReport
from tbactl.telemetry.trace import process_trace
from tbactl.trainer.collate import MicroBatch, collate
from tbactl.trainer.deepspeed_backend import DeepSpeedBackend, accelerator_device
from tbactl.trainer.log_z_head import LearnsLogZ
from tbactl.trainer.lora import LoraAdapters, base_sources
from tbactl.trainer.moving_reference import MovingReference
from tbactl.trainer.policy import LoadedPolicy, export_policy, load_policy
from tbactl.trainer.ranks import Command, RankGroup
from tbactl.trainer.recompute import recompute_layers
from tbactl.trainer.reference import ReferenceScorer
from tbactl.trainer.scoring import ScoringModel, score_only_group
from tbactl.trainer.scoring_check import check_scoring
from tbactl.trainer.update import Updater
from tbactl.trainer.weights import WeightCollector
from tbactl.types import TrajectoryGroup
from tbactl.weight_sync.adapter_file import write_adapters
from tbactl.weight_sync.weights_file import write_safetensors

logger = logging.getLogger(__name__)

RNG_FILE = "torch_rng.safetensors"


class DeepSpeedLearner:
    """Policy, reference and DeepSpeed engine of one trainer rank. Implements `Learner`.

    Args:
        config: of this rank. The reference begins as the initial policy; `reference.kind` says whether it stays.

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
        use_full_vector_width()
        torch.manual_seed(run.seed)
        self._was_deterministic = torch.are_deterministic_algorithms_enabled()
        if run.mode == "sync" and accelerator_device().type == "cpu":
            # Sums that several threads add to at once get one order, whoever comes first.
            torch.use_deterministic_algorithms(True)
        self._policy = load_policy(run.policy, directory=config.policy_directory)
        self._stop_ids = stop_token_ids(
            config.policy_directory, self._policy.tokenizer, trust_remote_code=run.policy.trust_remote_code
        )
        # Before adapters add names of their own.
        self._names = dict(self._policy.model.state_dict(keep_vars=True))
        self._base_sources = self._find_base_sources(config.policy_directory)
        self._adapters = None
        if run.policy.lora_rank:
            self._adapters = LoraAdapters(self._policy.model, run.policy, base=config.policy_directory)
        objective: Objective = build_objective(run.objective.kind, run.objective.options)
        check_required_fields(objective, kind=run.objective.kind)
        self._learns_log_z = "log_z" in objective.required_fields
        model = self._scoring_model(self._policy)
        if self._learns_log_z:
            assert isinstance(objective, LearnsLogZ)
            model.add_log_z_head(learning_rate=objective.log_z_learning_rate, initial=objective.log_z_initial)
        model.to(accelerator_device())
        if run.trainer.gradient_checkpointing:
            recompute_layers(self._policy.model)
        shares_prompt = self._shares_prompt(model)
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        self._backend = DeepSpeedBackend(model, run=run)
        self._weights = WeightCollector(
            self._names, adapters=self._adapters, backend=self._backend, is_leader=self._ranks.rank == 0
        )
        reference = self._reference(config.policy_directory, shares_prompt=shares_prompt)
        self._trace = process_trace(config)
        self._updater = Updater(
            run,
            backend=self._backend,
            reference=reference,
            objective=objective,
            ranks=self._ranks,
            shares_prompt=shares_prompt,
            trace=self._trace,
        )
        self._moving_reference = MovingReference(
            run.reference,
            policy=self._policy.model,
            reference=reference,
            backend=self._backend,
        )
        logger.info(
            "policy=%s parameters=%d trainable=%d layout=%s zero_stage=%d ranks=%d",
            type(self._policy.model).__name__,
            sum(size for size, _ in sizes),
            sum(size for size, is_trainable in sizes if is_trainable),
            "shared-prompt" if shares_prompt else "padded",
            run.trainer.zero_stage,
            self._ranks.size,
        )

    def _find_base_sources(self, policy_directory: Path) -> dict[str, str]:
        """What rank 0 tells searchers that merge adapters themselves."""
        run = self._run
        if not run.policy.lora_rank or run.sync.weights != "adapter" or self._ranks.rank > 0:
            return {}
        return base_sources(self._names, policy=policy_directory)

    def _reference(self, policy_directory: Path, *, shares_prompt: bool) -> ReferenceScorer:
        """The initial policy: the trained model with its adapters off, or a second model."""
        run = self._run
        if self._adapters is None:
            model = self._scoring_model(load_policy(run.policy, directory=policy_directory))
            model.requires_grad_(False).to(accelerator_device())
            return ReferenceScorer(model, capacity=run.replay.capacity, shares_prompt=shares_prompt)
        return ReferenceScorer(
            self._base_logprobs,
            capacity=run.replay.capacity,
            shares_prompt=shares_prompt,
            any_rank=self._ranks.any if run.trainer.zero_stage == 3 else None,
        )

    def _base_logprobs(self, batch: MicroBatch) -> Tensor:
        assert self._adapters is not None
        with self._adapters.off():
            return self._backend.logprobs(batch)

    def _scoring_model(self, policy: LoadedPolicy) -> ScoringModel:
        return ScoringModel(
            policy.model,
            temperature=training_temperature(self._run.searchers),
            min_new_tokens=self._run.searchers.min_new_tokens,
            stop_ids=self._stop_ids,
            chunk_tokens=self._run.trainer.logprob_chunk_tokens,
        )

    def _shares_prompt(self, model: ScoringModel) -> bool:
        """Which layout this run uses; says why, and what it costs, when it is the slower one."""
        obstacle = check_scoring(model)
        if obstacle is not None and self._ranks.rank == 0:
            logger.warning(
                "prompts are not shared: %s. Each completion is passed through the model with a prompt of its own: "
                "prompts are read %d times (trainer.completions_per_prompt).",
                obstacle,
                self._run.trainer.completions_per_prompt,
            )
        return obstacle is None

    # What rank 0 is asked --------------------------------------------------------------------------------------------

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        *,
        beta: float,
        should_abort: Callable[[], bool],
        reference_exponent: float = 1.0,
    ) -> UpdateReport | None:
        """One optimizer step; `should_abort` is asked before each micro-batch."""
        if self._ranks.size > 1:
            records = [encode(group) for group in groups]
            arguments = {
                "beta": beta,
                "reference_exponent": reference_exponent,
                "sizes": [len(record) for record in records],
            }
            self._ranks.send(Command(name="update", arguments=arguments, blob=b"".join(records)))
        return self._update(groups, beta=beta, reference_exponent=reference_exponent, should_abort=should_abort)

    def probe_logprobs(self, probe: ProbeBatch) -> list[tuple[float, ...]]:
        """Log-probs at temperature 1."""
        self._ranks.send(Command(name="probe", arguments={"sequences": probe.sequences}))
        return self._probe(probe.sequences)

    def export_policy(self, directory: Path) -> None:
        """Write and verify the policy in Hugging Face form; beside it `adapter/`, in peft's form, where it has them."""
        if self._adapters is not None:
            self._adapters.export(CheckpointLayout(directory.parent).adapter, self._ask_adapters())
        self._ranks.send(Command(name="collect"))
        weights = self._weights.whole()
        export_policy(self._policy, directory, weights=weights, trust_remote_code=self._run.policy.trust_remote_code)

    def write_weights(self, path: Path) -> None:
        """Write all parameters as one safetensors file, or only adapters for searchers that merge them."""
        if self._base_sources:
            write_adapters(path, self._ask_adapters(), dtype=self._run.policy.dtype, sources=self._base_sources)
            return
        self._ranks.send(Command(name="collect"))
        write_safetensors(path, self._weights.whole())

    def _ask_adapters(self) -> dict[str, Adapter]:
        self._ranks.send(Command(name="collect-adapters"))
        return self._weights.adapters()

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
        self._trace.close()
        self._backend.close()
        self._ranks.close()
        torch.use_deterministic_algorithms(self._was_deterministic)

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
                    self._update(
                        groups,
                        beta=arguments["beta"],
                        reference_exponent=arguments["reference_exponent"],
                        should_abort=report_progress,
                    )
                case "probe":
                    self._probe([(tuple(ids), length) for ids, length in arguments["sequences"]])
                case "collect":
                    self._weights.whole()
                case "collect-adapters":
                    self._weights.adapters()
                case "save":
                    self._save(Path(arguments["directory"]))
                case "load":
                    self._load(Path(arguments["directory"]))
                case "stop":
                    return
                case unknown:
                    raise AssertionError(f"unknown command {unknown}")

    # What all ranks do together --------------------------------------------------------------------------------------

    def _update(
        self,
        groups: Sequence[TrajectoryGroup],
        *,
        beta: float,
        reference_exponent: float,
        should_abort: Callable[[], bool],
    ) -> UpdateReport | None:
        report = self._updater.update(
            groups, beta=beta, reference_exponent=reference_exponent, should_abort=should_abort
        )
        if report is not None:
            self._moving_reference.after_step()
            report.metrics["trainer/reference_updates/total"] = float(self._moving_reference.num_updates)
        return report

    def _probe(self, sequences: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[float, ...]]:
        scores = []
        for ids, prompt_length in sequences:
            group = score_only_group(list(ids[:prompt_length]), [list(ids[prompt_length:])])
            batch = collate([group], shares_prompt=False).to(self._backend.device)
            with torch.no_grad():
                scores.append(tuple(self._backend.logprobs(batch, temperature=1.0)[0].tolist()))
        return scores

    def _save(self, directory: Path) -> None:
        if self._ranks.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            self._policy.model.config.save_pretrained(directory / POLICY_CONFIG)
            self._policy.tokenizer.save_pretrained(directory / POLICY_CONFIG)
            (directory / FACTS_FILE).write_text(json.dumps(self._facts(), indent=2) + "\n")
        self._ranks.barrier()
        self._backend.save(directory)
        self._moving_reference.save(directory, is_writer=self._ranks.rank == 0)
        save_file(_rng_states(), directory / f"rank{self._ranks.rank}-{RNG_FILE}")
        self._ranks.barrier()

    def _facts(self) -> dict[str, Any]:
        trainer = self._run.trainer
        return {
            "num_ranks": trainer.num_ranks,
            "zero_stage": trainer.zero_stage,
            "dtype": self._run.policy.dtype,
            "learns_log_z": self._learns_log_z,
            "adapters": None if self._adapters is None else self._adapters.facts(self._names),
        }

    def _load(self, directory: Path) -> None:
        try:
            facts = json.loads((directory / FACTS_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{directory / FACTS_FILE}: cannot be read: {error}") from error
        different = {
            name: (facts.get(name), value) for name, value in self._facts().items() if facts.get(name) != value
        }
        if different:
            listing = "; ".join(
                f"{name} was {show_value(old)}, is {show_value(new)}" for name, (old, new) in different.items()
            )
            raise CheckpointError(f"{directory} cannot be continued with these settings: {listing}.")
        self._backend.load(directory)
        self._moving_reference.load(directory)
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
    if "log_z" in objective.required_fields and not isinstance(objective, LearnsLogZ):
        raise ConfigError(
            f"objective.kind: '{kind}' requires log_z without saying how it is learned; give it the attributes "
            f"log_z_learning_rate and log_z_initial."
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
