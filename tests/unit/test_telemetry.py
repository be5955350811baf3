from __future__ import annotations

import json
import math

import pytest

from tbactl.clock import FakeClock
from tbactl.config.layout import RunLayout
from tbactl.config.sections import LoggingSection
from tbactl.errors import ConfigError
from tbactl.telemetry.fanout import FanOut, logger_names
from tbactl.telemetry.jsonl import ELAPSED, JsonlLogger
from tbactl.telemetry.lines import JsonLines
from tbactl.telemetry.tensorboard import TensorBoardLogger
from tbactl.telemetry.trajectories import TrajectoryLog
from tbactl.telemetry.wandb import WandbLogger
from tests.support.trainer_groups import make_group


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl_writes_a_line_for_each_step_that_can_be_read_at_once(tmp_path):
    logger = JsonlLogger(FakeClock(100.0))
    logger.start(tmp_path, {})
    logger.log_metrics(1, {"objective/reward/mean": 0.5, ELAPSED: 2.5})
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "time_s": 2.5, "wall_time": 100.0, "metrics": {"objective/reward/mean": 0.5, ELAPSED: 2.5}}
    ]
    logger.close()


def test_jsonl_not_a_number_becomes_null(tmp_path):
    logger = JsonlLogger()
    logger.start(tmp_path, {})
    logger.log_metrics(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    assert lines(tmp_path / "metrics.jsonl")[0]["metrics"] == {"a": None, "b": None, "c": 1.0}
    logger.close()


@pytest.mark.parametrize("left_over", ['{"step": 2, "me', "", "x" * 200_000])
def test_lines_torn_last_line_is_cut_off(tmp_path, left_over):
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\n' + left_over)
    file = JsonLines(path)
    file.append({"step": 2})
    file.close()
    assert lines(path) == [{"step": 1}, {"step": 2}]


def test_lines_file_without_any_complete_line_begins_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"ste')
    file = JsonLines(path)
    file.append({"step": 1})
    file.close()
    assert lines(path) == [{"step": 1}]


def test_tensorboard_writes_scalars_that_tensorboard_reads(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger()
    logger.start(tmp_path, {"seed": 3})
    logger.log_metrics(4, {"objective/reward/mean": 0.25})
    logger.close()

    events = EventAccumulator(str(RunLayout(tmp_path).tensorboard))
    events.Reload()
    (event,) = events.Scalars("objective/reward/mean")
    assert (event.step, event.value) == (4, 0.25)


def test_wandb_missing_package_is_a_config_error_at_start(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"'mine' needs the package 'wandb'.*tbactl\[wandb\]"):
        WandbLogger().start(tmp_path, {"logging": {"wandb_project": "mine"}})


def test_wandb_gets_the_run_its_config_and_metrics(tmp_path, monkeypatch):
    calls = []

    class Run:
        def log(self, metrics, step):
            calls.append((step, metrics))

        def finish(self):
            calls.append("finish")

    class Wandb:
        @staticmethod
        def init(**arguments):
            calls.append(arguments)
            return Run()

    monkeypatch.setitem(__import__("sys").modules, "wandb", Wandb)
    config = {"logging": {"wandb_project": "mine"}}
    logger = WandbLogger()
    logger.start(tmp_path, config)
    logger.log_metrics(3, {"a": 1.0})
    logger.close()
    assert calls[0]["project"] == "mine"
    assert calls[0]["config"] == config
    assert calls[1:] == [(3, {"a": 1.0}), "finish"]


@pytest.mark.fault("R-10")
@pytest.mark.parametrize(
    ("section", "names"),
    [
        (LoggingSection(tensorboard=False), ["jsonl"]),
        (LoggingSection(), ["jsonl", "tensorboard"]),
        (LoggingSection(wandb_project="p"), ["jsonl", "tensorboard", "wandb"]),
    ],
)
def test_logger_names_follow_the_configuration(section, names):
    assert logger_names(section) == names


class Recorder:
    def __init__(self, *, fails=False):
        self.steps = []
        self.fails = fails
        self.closed = False

    def start(self, run_directory, resolved_config):
        pass

    def log_metrics(self, step, metrics):
        if self.fails:
            raise OSError("disk full")
        self.steps.append(step)

    def close(self):
        self.closed = True


def test_fanout_logger_that_fails_is_left_out_and_the_others_go_on(caplog):
    good, bad = Recorder(), Recorder(fails=True)
    fanout = FanOut({"bad": bad, "good": good})
    fanout.log_metrics(1, {})
    fanout.log_metrics(2, {})
    fanout.close()
    assert good.steps == [1, 2]
    assert good.closed
    assert caplog.text.count("left out from now on") == 1


def test_fanout_failure_at_start_is_loud(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    fanout = FanOut({"wandb": WandbLogger()})
    with pytest.raises(ConfigError):
        fanout.start(tmp_path, {"logging": {"wandb_project": "mine"}})


def test_trajectory_log_writes_different_prompts_and_moves_on_with_the_step(tmp_path):
    log = TrajectoryLog(tmp_path, num_per_step=2)
    groups = [make_group(prompt_tokens=2, completion_tokens=[3, 4], prompt_id=i) for i in range(3)]
    log.log(1, groups)
    log.log(2, groups)
    log.close()
    written = lines(tmp_path / "trajectories.jsonl")
    assert [(line["step"], line["prompt_id"], line["num_tokens"]) for line in written] == [
        (1, 0, 4),
        (1, 1, 4),
        (2, 0, 3),
        (2, 1, 3),
    ]
    assert written[0].keys() >= {"prompt", "completion", "reward", "version", "finish_reason", "uid", "searcher"}


def test_trajectory_log_asked_for_more_than_there_are_writes_each_once(tmp_path):
    log = TrajectoryLog(tmp_path, num_per_step=100)
    log.log(0, [make_group(prompt_tokens=2, completion_tokens=[3, 4, 5], prompt_id=i) for i in range(2)])
    log.close()
    uids = [line["uid"] for line in lines(tmp_path / "trajectories.jsonl")]
    assert len(uids) == len(set(uids)) == 6


def test_trajectory_log_full_disk_stops_the_log_not_the_training(tmp_path, caplog):
    log = TrajectoryLog(tmp_path, num_per_step=1)
    log._lines.close()
    for step in range(3):
        log.log(step, [make_group(prompt_tokens=2, completion_tokens=[3])])
    assert caplog.text.count("no more trajectories are written") == 1
