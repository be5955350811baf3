from __future__ import annotations

import json

import pytest

from tbactl import registry
from tbactl.sft.__main__ import main


class TaskWithoutExamples:
    pass


def write_config(tmp_path, **changes):
    settings = {
        "name": "tiny",
        "runs_dir": str(tmp_path),
        "task": {"kind": "fake"},
        "stages": [{"name": "a", "mixture": {"worked": 1.0}, "num_tokens": 100, "learning_rate": 1e-3}],
    }
    path = tmp_path / "resolved.json"
    path.write_text(json.dumps(settings | changes))
    return str(path)


def test_main_task_without_examples_exits_with_the_task_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "load", lambda group, name: TaskWithoutExamples)
    assert main(["--config", write_config(tmp_path)]) == 4
    assert "sft_examples" in capsys.readouterr().out


@pytest.mark.parametrize("changes", [{"stages": []}, {"batch_tokens": 0}])
def test_main_invalid_config_exits_with_the_config_code(tmp_path, capsys, changes):
    assert main(["--config", write_config(tmp_path, **changes)]) == 3
    assert next(iter(changes)) in capsys.readouterr().out
