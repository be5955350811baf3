"""What a stranger's run, recipe or checkpoint must not decide."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tbactl.checkpoints.manifest import make_manifest, read_manifest, verify
from tbactl.clock import SystemClock
from tbactl.config.engine import EngineConfig
from tbactl.config.evaluation import EvaluationConfig
from tbactl.config.evaluation_loading import evaluation_config
from tbactl.config.layout import CheckpointLayout, RunLayout
from tbactl.config.loading import load_recipe
from tbactl.config.sections import PolicySection, RunConfig
from tbactl.errors import CheckpointError
from tbactl.supervision.run_directory import new_directory
from tests.support.recipes import write_recipe


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    overrides = ["policy.trust_remote_code=true", f"runs_dir={tmp_path}"]
    return load_recipe(write_recipe(tmp_path), overrides=overrides, profile="cpu").run_config


def test_checkpoint_does_not_decide_that_its_code_is_run(config: RunConfig, tmp_path: Path):
    layout = RunLayout(tmp_path / "theirs")
    layout.config.mkdir(parents=True)
    layout.resolved_config.write_text(config.model_dump_json())
    assert not evaluation_config(str(layout.root), given={}).trust_remote_code
    assert evaluation_config(str(layout.root), given={}, overrides=["trust_remote_code=true"]).trust_remote_code


@pytest.mark.parametrize("model", [PolicySection, EvaluationConfig, EngineConfig])
def test_code_of_a_model_is_not_run_unless_asked_for(model: type):
    default = getattr(model, "model_fields", None) or model.__dataclass_fields__
    assert default["trust_remote_code"].default is False


def test_run_directory_is_private_whatever_the_umask(config: RunConfig):
    before = os.umask(0)
    try:
        directory = new_directory(config, clock=SystemClock())
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("path", ["../secret", "replay/../../secret", "/etc/passwd"])
def test_manifest_that_leads_out_of_its_checkpoint_is_refused(tmp_path: Path, path: str):
    root = tmp_path / "step_000001"
    root.mkdir()
    (root / "data").write_text("x")
    (tmp_path / "secret").write_text("y")
    layout = CheckpointLayout(root)
    manifest = make_manifest(root, step=1)
    listed = {"path": path, "size_bytes": 1, "blake2b": manifest.files[0].blake2b}
    layout.manifest.write_text(json.dumps({"layout_version": manifest.layout_version, "step": 1, "files": [listed]}))
    with pytest.raises(CheckpointError, match="outside of the checkpoint"):
        read_manifest(root)


@pytest.mark.parametrize("part", ["", "replay"])
def test_manifest_without_files_proves_nothing(tmp_path: Path, part: str):
    layout = CheckpointLayout(tmp_path)
    layout.manifest.write_text('{"layout_version": 1, "step": 1, "files": []}')
    with pytest.raises(CheckpointError, match="lists no file"):
        verify(tmp_path, part=part)
