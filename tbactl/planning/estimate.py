"""From what is known of the hardware to a scenario. What was neither measured nor given is estimated from peaks.

Such an estimate is rough, within a factor of two at best: arithmetic of 2 FLOP for each parameter and token forward and
4 backward, one read of weights and cache for each decode step, a fixed share of the peaks for everything.
"""

from __future__ import annotations

from dataclasses import dataclass

from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError
from tbactl.planning.hardware import CostsSection, Hardware, MachineSection, ModelSection
from tbactl.planning.memory import BYTES, kv_bytes_per_token
from tbactl.planning.scenario import Costs, Scenario

# Forward and backward of the policy, forward of the reference.
TRAIN_FLOPS = 2 + 4 + 2


def scenario_of(
    run: RunConfig, *, hardware: Hardware, model: ModelSection | None, max_steps: int, seed: int
) -> Scenario:
    """A scenario for the simulation.

    Args:
        run: the configuration.
        hardware: given, measured, or both.
        model: the policy's shape, where it is known.
        max_steps: simulate no more.
        seed: of the simulation.

    Raises:
        ConfigError: a cost is missing, and so is what it could be estimated from.
    """
    workload, searchers = hardware.workload, run.searchers
    completion_tokens = workload.completion_tokens or searchers.max_new_tokens / 2
    prompt_tokens = workload.prompt_tokens or searchers.max_prompt_tokens / 2
    estimator = _Estimator(run, hardware.machine, model, completion_tokens, prompt_tokens)
    return Scenario(
        run=run,
        costs=_costs(run, hardware.costs, estimator=estimator),
        cores=hardware.machine.cores,
        completion_tokens=completion_tokens,
        prompt_tokens=prompt_tokens,
        num_prompts=workload.num_prompts,
        trainable_share=workload.trainable_share,
        max_steps=max_steps,
        seed=seed,
    )


@dataclass(frozen=True, slots=True)
class _Estimator:
    run: RunConfig
    machine: MachineSection
    model: ModelSection | None
    completion_tokens: float
    prompt_tokens: float

    @property
    def missing(self) -> list[str]:
        """What an estimate would need."""
        names = ("flops_per_s", "memory_bytes_per_s", "link_bytes_per_s")
        missing = [f"machine.{name}" for name in names if getattr(self.machine, name) is None]
        return missing if self.model is not None else [*missing, "[model], for the policy is not on this machine"]

    def generate_s(self, model: ModelSection) -> float:
        """A decode step reads weights and caches, and computes one token of each sequence; prompts once a group."""
        searchers = self.run.searchers
        num_sequences = searchers.max_concurrent_groups * searchers.num_completions
        length = self.prompt_tokens + self.completion_tokens / 2
        cache_bytes = num_sequences * length * kv_bytes_per_token(self.run, model)
        read_s = (self._weight_bytes(model) + cache_bytes) / self._peak("memory_bytes_per_s")
        flops = 2 * model.num_parameters
        step_s = max(read_s, num_sequences * flops / self._peak("flops_per_s"))
        prompt_s = self.prompt_tokens * flops / self._peak("flops_per_s") / searchers.num_completions
        return step_s * self.completion_tokens / num_sequences + prompt_s

    def train_s(self, model: ModelSection) -> float:
        """Completion, and its share of the group's prompt, which is computed once."""
        tokens = self.completion_tokens + self.prompt_tokens / self.run.trainer.completions_per_prompt
        return TRAIN_FLOPS * model.num_parameters * tokens / self._peak("flops_per_s")

    def transfer_s(self, model: ModelSection) -> float:
        """Weights between device and host memory."""
        return self._weight_bytes(model) / self._peak("link_bytes_per_s")

    def _weight_bytes(self, model: ModelSection) -> float:
        return model.num_parameters * BYTES[self.run.policy.dtype]

    def _peak(self, name: str) -> float:
        return getattr(self.machine, name) * self.machine.efficiency


def _costs(run: RunConfig, given: CostsSection, *, estimator: _Estimator) -> Costs:
    values = given.model_dump()
    needed = [name for name in ("generate_s", "train_s", "publish_s", "load_s") if values[name] is None]
    if needed and not estimator.missing:
        assert estimator.model is not None
        model = estimator.model
        transfer_s = estimator.transfer_s(model)
        estimates = {"publish_s": transfer_s, "load_s": transfer_s}
        estimates |= {"generate_s": estimator.generate_s(model), "train_s": estimator.train_s(model)}
        values |= {name: estimates[name] for name in needed}
    elif "generate_s" in needed or "train_s" in needed:
        names = " and ".join(f"costs.{name}" for name in ("generate_s", "train_s") if name in needed)
        raise ConfigError(
            f"{names}: neither given nor measured. Measure them (--from RUN), write them into the hardware file, or "
            f"let them be estimated, which needs {', '.join(estimator.missing)}. The easiest: a short run with one "
            f"searcher (`tbactl run RECIPE --set searchers.num_searchers=1 --set trainer.max_steps=20`), then "
            f"`tbactl plan RECIPE --from latest`."
        )
    else:
        # Syncs are short beside everything else.
        values |= dict.fromkeys(needed, 0.0)
        needed = []
    if values["evaluate_s"] is None:
        values["evaluate_s"] = run.evaluation.num_prompts * values["generate_s"]
    return Costs(**values, estimated=tuple(needed))
