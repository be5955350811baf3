from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from tbactl.config.sections import PolicySection
from tbactl.errors import CheckpointError, ConfigError
from tbactl.trainer.policy import export_policy, load_policy, verify_export
from tests.support.tiny_policy import make_tiny_policy


@pytest.fixture
def exported(tmp_path):
    """A directory as `export_policy` leaves it, and the weights that were meant."""
    source = make_tiny_policy(tmp_path / "policy")
    policy = load_policy(PolicySection(path=str(source)), directory=source)
    weights = policy.model.state_dict()
    export_policy(policy, tmp_path / "export", weights=weights)
    return tmp_path / "export", weights


def rewrite(directory, change):
    path = directory / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


NORM = "model.norm.weight"


@pytest.mark.fault("I-23", "I-77")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.update({NORM: weights[NORM] + 1e-6}), f"not as in the trainer: {NORM}"),
        (lambda weights: weights.pop(NORM), f"missing keys: {NORM}"),
        (lambda weights: weights.update({"model.old_name": torch.zeros(1)}), r"unexpected keys: model\.old_name"),
    ],
    ids=["another value", "missing", "another name"],
)
def test_export_that_does_not_load_as_it_was_written_is_refused(exported, change, message):
    directory, weights = exported
    verify_export(directory, weights=weights)
    rewrite(directory, change)
    with pytest.raises(CheckpointError, match=message):
        verify_export(directory, weights=weights)


@pytest.mark.fault("I-79")
def test_policy_that_lacks_weights_is_refused_and_none_are_made_up(exported):
    directory, _ = exported
    rewrite(directory, lambda weights: weights.pop(NORM))
    with pytest.raises(ConfigError, match=rf"lacks the weights {NORM}"):
        load_policy(PolicySection(path=str(directory)), directory=directory)
