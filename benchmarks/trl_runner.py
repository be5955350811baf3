"""TRL's `GRPOTrainer` on the math task, for a given time: the child process of `time_to_accuracy.py`.

    python -m benchmarks.trl_runner OUTPUT --seed 0 --budget-s 90 --save-at 10 30 90 [--set KEY=VALUE ...]

What it shares with `tbactl run gsm8k` comes from that recipe: start policy in float32, the task's stream of training
problems of that seed in its order, the task's `score` as the reward, sampling, prompts and completions of a step. The
rest is SETTINGS, under GRPOConfig's own names; `--set` changes them.

OUTPUT gets `steps.jsonl`, a line for each optimizer step (seconds since training began, tokens generated so far, share
of right answers among its completions), and `weights/step_000010`, the policy in Hugging Face form after the first step
that ends at or after each time of `--save-at`, and after the last one. Writing them is within the time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tbactl.config.loading import load_recipe
from tbactl.config.sections import RunConfig
from tbactl.config.tasks import build_task, shipped_policy
from tbactl.protocols import Task
from tbactl.types import Completion, Prompt

# What was tried for each, with measurements: docs/performance.md.
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "loss_type": "dapo",
    # Without a KL term no reference model is run.
    "beta": 0.0,
    "bf16": False,
    # Saves memory that is not short here, and costs a second forward pass.
    "gradient_checkpointing": False,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 8,
}
# So many that no run here gets through them; the stream itself is endless.
NUM_PROBLEMS = 4_000
NO_LIMIT = 1_000_000


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--difficulty", default="easy", help="of the problems")
    parser.add_argument("--budget-s", type=float, required=True)
    parser.add_argument("--save-at", type=float, nargs="*", default=[])
    parser.add_argument("--set", dest="overrides", action="append", default=[], type=key_and_value, metavar="KEY=VALUE")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    overrides = [f"seed={arguments.seed}", f'task.options.difficulty="{arguments.difficulty}"']
    train(
        load_recipe("gsm8k", profile="cpu", overrides=overrides).run_config,
        output=arguments.output,
        budget_s=arguments.budget_s,
        save_at=arguments.save_at,
        settings=SETTINGS | {name: _value(text) for name, text in arguments.overrides},
    )


def key_and_value(text: str) -> tuple[str, str]:
    """`KEY=VALUE`, as an option of the command line takes it, in two.

    Raises:
        ArgumentTypeError: it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE: give for example learning_rate=1e-4")
    return name, value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def train(run: RunConfig, *, output: Path, budget_s: float, save_at: Sequence[float], settings: dict[str, Any]) -> None:
    """Make TRL's trainer of a recipe's settings and run it."""
    with warnings.catch_warnings():
        # It warns of versions of vLLM that it was not tested with.
        warnings.simplefilter("ignore")
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

    policy = shipped_policy(run.task.kind, run.policy.path)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    task = build_task(run.task.kind, run.task.options)
    prompts = training_prompts(task, run, num_tokens=lambda text: len(tokenizer.encode(text)))
    log = _Log(output, budget_s=budget_s, save_at=save_at)
    config = GRPOConfig(
        output_dir=str(output / "trainer"),
        use_cpu=True,
        seed=run.seed,
        max_steps=NO_LIMIT,
        num_generations=run.trainer.completions_per_prompt,
        max_completion_length=run.searchers.max_new_tokens,
        temperature=run.searchers.temperature,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **settings,
    )
    assert config.generation_batch_size == run.trainer.prompts_per_step * run.trainer.completions_per_prompt
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy, dtype="float32"),
        processing_class=tokenizer,
        reward_funcs=Rewards(task, log=log),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": p.text, "answer": p.facts["answer"]} for p in prompts]),
        callbacks=[log.callback()],
    )
    trainer.train()
    task.close()


def training_prompts(task: Task, run: RunConfig, *, num_tokens: Any) -> list[Prompt]:
    """The first problems that a searcher answers in a run of that recipe: those that are not too long, in order."""
    stream = task.prompts("train", seed=run.seed)
    fitting = (prompt for prompt in stream if num_tokens(prompt.text) <= run.searchers.max_prompt_tokens)
    return list(islice(fitting, NUM_PROBLEMS))


class Rewards:
    """The task's score as one of TRL's reward functions; counts what was generated."""

    __name__ = "task_score"

    def __init__(self, task: Task, *, log: _Log) -> None:
        self._task = task
        self._log = log

    def __call__(
        self,
        *,
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        answer: list[str],
        **_: Any,
    ) -> list[float | None]:
        """One reward for each completion."""
        rewards: list[float | None] = [
            self._task.score(
                Prompt(prompt_id=0, text=prompt, facts={"answer": gold}),
                [Completion(token_ids=(), logprobs=(), text=text, finish_reason="stop")],
            )[0].value
            for prompt, text, gold in zip(prompts, completions, answer, strict=True)
        ]
        num_right = sum(reward == 1.0 for reward in rewards)
        self._log.note_generated(num_tokens=sum(map(len, completion_ids)), accuracy=num_right / len(rewards))
        return rewards


class _Log:
    """Writes steps and weights, and ends the training when its time is over."""

    def __init__(self, output: Path, *, budget_s: float, save_at: Sequence[float]) -> None:
        self._output = output
        self._budget_s = budget_s
        self._left = sorted(moment for moment in save_at if moment < budget_s)
        self._num_tokens = 0
        self._accuracy = float("nan")
        self._start_s = 0.0
        (output / "steps.jsonl").unlink(missing_ok=True)

    def note_generated(self, *, num_tokens: int, accuracy: float) -> None:
        self._num_tokens += num_tokens
        self._accuracy = accuracy

    def begin(self) -> None:
        self._start_s = time.monotonic()
        (self._output / "began.json").write_text(json.dumps({"wall_s": time.time()}))

    def end_step(self, step: int, model: Any) -> bool:
        """Note a step that has ended; True when the time is over."""
        time_s = time.monotonic() - self._start_s
        line = {"step": step, "time_s": time_s, "generated_tokens": self._num_tokens, "accuracy": self._accuracy}
        with (self._output / "steps.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        is_over = time_s >= self._budget_s
        passed = [moment for moment in self._left if moment <= time_s]
        if passed or is_over:
            self._left = self._left[len(passed) :]
            model.save_pretrained(self._output / "weights" / f"step_{step:06d}")
        return is_over

    def callback(self) -> Any:
        """As TRL takes it."""
        from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

        log = self

        class Callback(TrainerCallback):
            def on_train_begin(
                self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
            ) -> None:
                log.begin()

            def on_step_end(
                self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
            ) -> None:
                if log.end_step(state.global_step, kwargs["model"]):
                    control.should_training_stop = True

        return Callback()


if __name__ == "__main__":
    main()
