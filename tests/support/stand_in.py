"""A child process without an engine or a learner: it speaks only the control page's language, and fails on request.

`trainer.options` and `searchers.engine_options` may hold: step_seconds, load_seconds, exit_while_loading (code),
exit_after (steps), exit_code, fail_after (steps: says so, but never leaves), hang_after (steps), idle_after (steps:
alive, but nothing gets on), hold_at (step: the trainer rests there until the run directory has the file `go_on`),
exit_while_saving (code), never_evaluate, never_load, leave_seconds, ignore_stop, ignore_sigterm, only (this index),
once (only in the first life).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from tbactl.checkpoints.store import CheckpointStore
from tbactl.config.layout import ProcessConfig
from tbactl.ipc.child import Pulse, bind_to_cores, die_with_parent
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState, Slot


class StandIn:
    def __init__(self, config: ProcessConfig) -> None:
        self.config = config
        self.page = ControlPage.open(config.shm.control)
        is_trainer = config.role == "trainer"
        self.slot: Slot = self.page.trainer(config.index) if is_trainer else self.page.searcher(config.index)
        self.options = dict(config.run.trainer.options if is_trainer else config.run.searchers.engine_options)
        if self.options.get("only", config.index) != config.index:
            self.options = {}
        if self.options.get("once") and not is_trainer and self.slot.get("attempt") > 1:
            self.options = {}
        self.pulse = Pulse(self.slot, supervisor=self.page.supervisor)
        self.num_turns = 0

    def run_state(self) -> int:
        return self.page.supervisor.get("run_state")

    def stopping(self) -> bool:
        return self.run_state() >= RunState.DRAINING and not self.options.get("ignore_stop")

    def start(self) -> None:
        print(f"{self.config.role}-{self.config.index} stands in, pid {os.getpid()}", flush=True)
        if self.options.get("ignore_sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.pulse.start()
        self.pulse.enter(ProcessState.LOADING)
        if "exit_while_loading" in self.options:
            print("\x1b[31mcannot load\x1b[0m the model", flush=True)
            sys.exit(self.options["exit_while_loading"])
        time.sleep(self.options.get("load_seconds", 0.0))
        if self.config.role == "trainer" and self.config.resume_checkpoint is not None:
            step = int(self.config.resume_checkpoint.name.removeprefix("step_"))
            self.slot.set(policy_version=step, published_version=step)
        self.pulse.enter(ProcessState.READY)
        while self.run_state() == RunState.STARTING:
            time.sleep(0.01)
        self.pulse.enter(ProcessState.RUNNING)

    def turn(self) -> None:
        self.num_turns += 1
        if self.num_turns > self.options.get("exit_after", 10**9):
            print("out of luck", flush=True)
            os._exit(self.options.get("exit_code", 1))
        if self.num_turns > self.options.get("fail_after", 10**9):
            self.pulse.enter(ProcessState.FAILED)
            time.sleep(3600)
        if self.num_turns > self.options.get("hang_after", 10**9):
            time.sleep(3600)
        time.sleep(self.options.get("step_seconds", 0.02))
        self.pulse.progress()

    def is_idle(self) -> bool:
        return self.num_turns > self.options.get("idle_after", 10**9)

    def is_held(self, step: int) -> bool:
        return step >= self.options.get("hold_at", 10**9) and not (self.config.run_directory / "go_on").exists()

    def train(self) -> None:
        max_steps, started = self.config.run.trainer.max_steps, time.monotonic()
        while (step := self.slot.get("policy_version")) < max_steps and not self.stopping():
            self.turn()
            if self.config.index == 0 and not self.is_idle() and not self.is_held(step):
                self.slot.set(policy_version=step + 1, published_version=step + 1, num_trajectories_received=8 * step)
                line = {"step": step + 1, "time_s": time.monotonic() - started, "wall_s": time.time()}
                self.append("metrics.jsonl", line | {"metrics": {"intake/reward/mean": step / max_steps}})
        if "exit_while_saving" in self.options:
            print("no room for the checkpoint", flush=True)
            os._exit(self.options["exit_while_saving"])
        if self.config.index == 0:
            self.checkpoint(self.slot.get("policy_version"))
            self.slot.set(finished=int(step >= max_steps))
        while not self.stopping():
            self.pulse.progress()
            time.sleep(0.01)

    def checkpoint(self, step: int) -> None:
        with CheckpointStore(self.config.layout, keep_last=9).writing(step=step) as checkpoint:
            checkpoint.trainer_state.write_text("{}")
        self.slot.set(checkpoint_step=step)

    def search(self) -> None:
        if self.config.index == 0 and not self.options.get("never_evaluate"):
            self.evaluate(0)
        while not self.stopping():
            self.turn()
            if self.is_idle():
                continue
            version = self.page.trainer().get("published_version")
            self.slot.set(loaded_version=0 if self.options.get("never_load") else version)
            self.slot.add(num_completions=8, tokens_generated=64)
            if self.config.index == 0 and not self.options.get("never_evaluate"):
                self.evaluate(version)

    def evaluate(self, version: int) -> None:
        if version in (0, self.config.run.trainer.max_steps) and self.slot.get("evaluated_version_plus_1") <= version:
            value = 0.2 if version == 0 else 0.6
            line = {"task": "fake", "policy_version": version, "num_prompts": 100, "metrics": {"accuracy": value}}
            self.append("evaluations.jsonl", line | {"intervals": {"accuracy": [value - 0.1, value + 0.1]}})
            self.slot.set(evaluated_version_plus_1=version + 1)

    def append(self, name: str, value: dict) -> None:
        with (self.config.run_directory / name).open("a") as file:
            file.write(json.dumps(value) + "\n")


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    config = ProcessConfig.model_validate_json(parser.parse_args().config.read_bytes())
    bind_to_cores(config.cores)
    child = StandIn(config)
    child.start()
    if config.role == "trainer":
        child.train()
    else:
        child.search()
    child.pulse.enter(ProcessState.STOPPED)
    child.pulse.stop()
    time.sleep(child.options.get("leave_seconds", 0.0))


if __name__ == "__main__":
    main()
