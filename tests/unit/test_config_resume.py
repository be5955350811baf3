import json

import pytest

from tbactl.config.layout import RunLayout
from tbactl.config.loading import load_recipe
from tbactl.config.resume import load_resumed
from tbactl.config.run_record import RunRecord
from tbactl.config.sections import ReplaySection
from tbactl.errors import CheckpointError, ConfigError
from tests.support.recipes import write_recipe


@pytest.fixture
def run_directory(tmp_path):
    return make_run(tmp_path)


def make_run(tmp_path, *overrides):
    """A run that ended, as far as its configuration goes."""
    overrides = ["trainer.max_steps=10", *overrides]
    config = load_recipe(write_recipe(tmp_path), overrides=overrides, profile="gpu").run_config
    layout = RunLayout(tmp_path / "run")
    layout.config.mkdir(parents=True)
    layout.resolved_config.write_text(config.model_dump_json())
    record = RunRecord(
        name=config.name,
        recipe="my-recipe",
        profile="gpu",
        attempt=1,
        pid=1,
        pid_start_ticks=1,
        shm_directory=tmp_path,
        started_at="2026-01-01T00:00:00Z",
    )
    layout.identity.write_text(record.model_dump_json())
    return layout.root


def test_load_resumed_gives_what_the_run_was_started_with(run_directory):
    loaded = load_resumed(run_directory)
    assert loaded.run_config.trainer.max_steps == 10
    assert (loaded.name, loaded.profile) == ("my-recipe", "gpu")


def test_load_resumed_warns_by_the_profile_of_the_run(tmp_path):
    run = make_run(tmp_path, "searchers.launcher=ray", "searchers.engine=transformers")
    assert any("asks for no GPU" in warning for warning in load_resumed(run).warnings)


def test_load_resumed_of_a_run_from_before_a_setting_existed_takes_its_default(run_directory):
    resolved = RunLayout(run_directory).resolved_config
    settings = json.loads(resolved.read_bytes())
    del settings["replay"]["eviction"], settings["trainer"]["adam_betas"]
    resolved.write_text(json.dumps(settings))
    config = load_resumed(run_directory, overrides=["trainer.max_steps=20"]).run_config
    assert config.replay == ReplaySection() and config.trainer.adam_betas == (0.9, 0.999)


def test_load_resumed_takes_the_settings_that_may_change(run_directory):
    overrides = [
        "trainer.max_steps=20",
        "logging.tensorboard=false",
        "supervision.max_restarts=9",
        "checkpoint.period=1",
        "checkpoint.keep_every=5",
        "sync.stop_logprob_difference=0",
    ]
    config = load_resumed(run_directory, overrides=overrides).run_config
    assert config.trainer.max_steps == 20
    assert config.logging.tensorboard is False
    assert config.supervision.max_restarts == 9
    assert config.checkpoint.period == 1


@pytest.mark.fault("I-53")
def test_load_resumed_refuses_every_other_change_and_says_why(run_directory):
    with pytest.raises(ConfigError) as caught:
        load_resumed(run_directory, overrides=["trainer.learning_rate=1", "seed=3", "trainer.max_steps=20"])
    problems = caught.value.problems
    assert len(problems) == 2
    assert all("fixed since the run began" in problem for problem in problems)
    assert {problem.split()[1] for problem in problems} == {"trainer.learning_rate", "seed"}


@pytest.mark.fault("I-53")
@pytest.mark.parametrize(
    "override",
    ["searchers.num_searchers=1", "searchers.num_searchers=3", "trainer.num_ranks=2", "trainer.zero_stage=3"],
)
def test_load_resumed_refuses_another_number_of_processes(tmp_path, override):
    run = make_run(tmp_path, "searchers.num_searchers=2")
    with pytest.raises(ConfigError, match=f"{override.partition('=')[0]} is fixed since the run began"):
        load_resumed(run, overrides=[override])


DECAY = "trainer.lr_schedule_options={ num_decay_steps = 2 }"
LENGTHS = "trainer.lr_schedule_options={ num_stable_steps = 5, num_decay_steps = 2 }"


@pytest.mark.fault("I-53")
@pytest.mark.parametrize(
    "settings",
    [
        ["trainer.lr_schedule=linear"],
        ["trainer.lr_schedule=cosine"],
        ["trainer.lr_schedule=warmup_stable_decay", DECAY],
    ],
    ids=["linear", "cosine", "decay at the end"],
)
def test_load_resumed_refuses_other_max_steps_where_learning_rates_depend_on_it(tmp_path, settings):
    run = make_run(tmp_path, *settings)
    with pytest.raises(ConfigError, match=r"trainer\.max_steps is fixed .* trainer\.lr_schedule"):
        load_resumed(run, overrides=["trainer.max_steps=20"])
    load_resumed(run, overrides=["trainer.max_steps=10"])


@pytest.mark.parametrize(
    "settings",
    [["trainer.lr_schedule=constant_with_warmup"], ["trainer.lr_schedule=warmup_stable_decay", LENGTHS]],
    ids=["constant", "lengths of its own"],
)
def test_load_resumed_takes_other_max_steps_where_learning_rates_stay(tmp_path, settings):
    run = make_run(tmp_path, *settings)
    assert load_resumed(run, overrides=["trainer.max_steps=20"]).run_config.trainer.max_steps == 20


def test_load_resumed_accepts_an_override_that_changes_nothing(run_directory):
    load_resumed(run_directory, overrides=["seed=0"])


def test_load_resumed_reports_wrong_values_like_a_recipe_does(run_directory):
    with pytest.raises(ConfigError, match=r"trainer\.max_steps = 0: must be at least 1"):
        load_resumed(run_directory, overrides=["trainer.max_steps=0"])


def test_load_resumed_of_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a run directory"):
        load_resumed(tmp_path)


@pytest.mark.parametrize("text", [None, "{"])
def test_load_resumed_without_a_readable_configuration_is_a_checkpoint_error(run_directory, text):
    resolved = RunLayout(run_directory).resolved_config
    if text is None:
        resolved.unlink()
    else:
        resolved.write_text(text)
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        load_resumed(run_directory)


def test_load_resumed_of_a_damaged_setting_is_a_checkpoint_error(run_directory):
    RunLayout(run_directory).resolved_config.write_text('{"trainer": 3}')
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        load_resumed(run_directory)


def test_load_resumed_of_an_unknown_profile_is_a_damaged_record(run_directory):
    identity = RunLayout(run_directory).identity
    identity.write_text(identity.read_text().replace('"gpu"', '"tpu"'))
    with pytest.raises(ConfigError, match="damaged"):
        load_resumed(run_directory)
