import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tbactl.checkpoints.store import CheckpointStore
from tbactl.clock import FakeClock
from tbactl.config.layout import CheckpointLayout, ProcessConfig, RunLayout
from tbactl.config.run_record import read_run_record
from tbactl.config.sections import PolicySection, RunConfig
from tbactl.errors import CapacityError, CheckpointError, ConfigError
from tbactl.supervision.atomic import point_symlink, write_text
from tbactl.supervision.environment import without_secrets
from tbactl.supervision.policy import published_bytes, resolve_policy
from tbactl.supervision.run_directory import RunDirectory, latest_checkpoint, new_directory, prepare


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "gsm8k", "runs_dir": tmp_path / "runs", "task": {"kind": "fake"}, "policy": {"path": "org/model"},
            "searchers": {"num_searchers": 2, "ring_capacity_bytes": 4096},
        }
    )  # fmt: skip


def prepared(config: RunConfig, tmp_path: Path, **options) -> RunDirectory:
    return prepare(config, recipe_name="r", profile="cpu", shm_root=tmp_path, **options)


def test_prepare_writes_everything_and_starts_nothing(config: RunConfig, tmp_path: Path):
    run = prepared(config, tmp_path)
    assert RunConfig.model_validate_json(run.layout.resolved_config.read_text()) == config
    names = {path.name for path in run.layout.config.iterdir()}
    assert names == {"resolved.json", "trainer-0.json", "searcher-0.json", "searcher-1.json"}
    process = ProcessConfig.model_validate_json((run.layout.config / "searcher-1.json").read_text())
    assert (process.role, process.index, process.run) == ("searcher", 1, config)
    assert process.run_directory == run.root and process.shm_directory == run.shm.root
    assert [spec.name for spec in run.specs] == ["trainer-0", "searcher-0", "searcher-1"]
    assert run.specs[1].argv[1:3] == ("-m", "tbactl.searcher")
    assert read_run_record(run.root).outcome == "prepared"
    assert not run.shm.root.exists() and not (run.root.parent / "latest").exists()
    assert list(run.root.rglob("*.tmp")) == []
    assert json.loads(run.layout.environment.read_text())["tbactl"]


def test_directories_of_one_second_get_numbers(config: RunConfig):
    clock = FakeClock(start_s=1_700_000_000)
    names = [new_directory(config, clock=clock).name for _ in range(3)]
    assert names[0].startswith("gsm8k-2023") and names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]


def test_shared_memory_that_does_not_fit_is_refused_before_a_directory_is_made(config: RunConfig, tmp_path: Path):
    big = config.model_copy(update={"searchers": config.searchers.model_copy(update={"ring_capacity_bytes": 2**60})})
    with pytest.raises(CapacityError, match="needs"):
        prepared(big, tmp_path)
    assert not (tmp_path / "runs").exists()


def make_checkpoint(layout: RunLayout, step: int, *, complete: bool = True) -> Path:
    checkpoint = layout.checkpoint(step)
    if complete:
        with CheckpointStore(layout, keep_last=9).writing(step=step) as made:
            made.trainer_state.write_text("{}")
    else:
        checkpoint.mkdir(parents=True)
    return checkpoint


def ended(run: RunDirectory) -> None:
    """Make it look as if another process had run it and ended."""
    run.write_record(run.record.model_copy(update={"outcome": "interrupted", "pid_start_ticks": 1}))


def test_resume_makes_a_new_attempt_in_the_same_directory(config: RunConfig, tmp_path: Path):
    first = prepared(config, tmp_path)
    ended(first)
    checkpoint = make_checkpoint(first.layout, 10)
    second = prepared(config, tmp_path, resume=first.root)
    assert second.root == first.root and second.record.attempt == 2 and second.resume_checkpoint == checkpoint
    assert (second.layout.logs / "latest").resolve().name == "attempt_002"
    process = ProcessConfig.model_validate_json((second.layout.config / "trainer-0.json").read_text())
    assert process.resume_checkpoint == checkpoint


def test_resume_from_a_damaged_checkpoint_takes_the_one_before_and_says_which(config: RunConfig, tmp_path: Path):
    first = prepared(config, tmp_path)
    ended(first)
    good, damaged = make_checkpoint(first.layout, 10), make_checkpoint(first.layout, 20)
    CheckpointLayout(damaged).trainer_state.write_text("[]")
    assert prepared(config, tmp_path, resume=first.root).resume_checkpoint == good


def test_incomplete_latest_checkpoint_falls_back_to_the_newest_complete_one(config: RunConfig, tmp_path: Path):
    layout = RunLayout(tmp_path / "run")
    make_checkpoint(layout, 10)
    make_checkpoint(layout, 20)
    point_symlink(layout.latest_checkpoint, make_checkpoint(layout, 30, complete=False).name)
    assert latest_checkpoint(layout).name == "step_000020"


@pytest.mark.parametrize("target", ["../../evil/foo", "../../evil/step_000003", "latest", "nothing"])
def test_latest_that_leads_out_of_the_run_is_passed_over(config: RunConfig, tmp_path: Path, target: str):
    layout = RunLayout(tmp_path / "run")
    own = make_checkpoint(layout, 10)
    for name in ("foo", "step_000003"):
        (tmp_path / "evil" / name).mkdir(parents=True)
        (tmp_path / "evil" / name / "manifest.json").write_text("{}")
    point_symlink(layout.latest_checkpoint, target)
    assert latest_checkpoint(layout) == own
    CheckpointLayout(own).manifest.unlink()
    with pytest.raises(CheckpointError, match="1 incomplete"):
        latest_checkpoint(layout)


def test_latest_checkpoint_without_a_link_is_that_of_the_highest_step(config: RunConfig, tmp_path: Path):
    layout = RunLayout(tmp_path / "run")
    for step in (999_999, 1_000_000):
        make_checkpoint(layout, step)
    layout.latest_checkpoint.unlink(missing_ok=True)
    assert latest_checkpoint(layout).name == "step_1000000"


def test_resume_without_checkpoint_or_of_a_living_run_is_refused(config: RunConfig, tmp_path: Path):
    run = prepared(config, tmp_path)
    with pytest.raises(ConfigError, match=f"still running \\(pid {os.getpid()}\\)"):
        prepared(config, tmp_path, resume=run.root)
    ended(run)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        prepared(config, tmp_path, resume=run.root)
    with pytest.raises(ConfigError, match="not a run directory"):
        prepared(config, tmp_path, resume=tmp_path)


def test_damaged_record_is_named(tmp_path: Path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        read_run_record(tmp_path)


def test_policy_is_a_local_directory_or_stays_a_hub_name(config: RunConfig, tmp_path: Path):
    assert resolve_policy(config) == Path("org/model")
    local = config.model_copy(update={"policy": PolicySection(path=str(tmp_path))})
    assert resolve_policy(local) == tmp_path.resolve()
    shipped = config.model_copy(update={"policy": PolicySection(path="task:small")})
    with pytest.raises(ConfigError, match="ships no policy"):
        resolve_policy(shipped)


def test_published_size_counts_float32_and_the_tied_head(tmp_path: Path):
    save_file(
        {"embed.weight": np.zeros((10, 4), np.float16), "norm": np.zeros(4, np.float16)}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 10, "hidden_size": 4}))
    assert published_bytes(PolicySection(path="p"), directory=tmp_path) == 4 * (40 + 4 + 40)
    assert published_bytes(PolicySection(path="p", dtype="bfloat16"), directory=tmp_path) == 2 * (40 + 4 + 40)
    assert published_bytes(PolicySection(path="p"), directory=Path("org/model")) == 0


def test_file_that_only_calls_itself_safetensors_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigError, match="not a safetensors file"):
        published_bytes(PolicySection(path="p"), directory=tmp_path)


def test_secrets_do_not_enter_the_environment_file():
    argv = ["tbactl", "run", "--api-key", "abc", "--set", "logging.wandb_token=xyz", "--hf-token=q", "--set", "seed=3"]
    assert without_secrets(argv) == [
        "tbactl", "run", "--api-key", "***", "--set", "logging.wandb_token=***", "--hf-token=***", "--set", "seed=3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "api_key",
        "x.auth_token",
        "apiKey",
        "clientSecret",
        "db.password",
        "wandb-api-keys",
        "oauth",
        "hftoken",
        "sshkey",
        "api_key_openai",
    ],
)
def test_values_of_names_that_hold_secrets_are_masked(name: str):
    assert without_secrets([f"{name}=abc"]) == [f"{name}=***"]


@pytest.mark.parametrize(
    "name", ["searchers.max_new_tokens", "trainer.micro_batch_tokens", "tokenizer", "author", "x.api_key_env", "monkey"]
)
def test_ordinary_settings_stay_visible(name: str):
    assert without_secrets(["--set", f"{name}=64"]) == ["--set", f"{name}=64"]


def test_failed_write_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "f.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_latest_link_moves_in_one_step(tmp_path: Path):
    link = tmp_path / "latest"
    for target in ("a", "b"):
        (tmp_path / target).mkdir()
        point_symlink(link, target)
        assert link.resolve().name == target
