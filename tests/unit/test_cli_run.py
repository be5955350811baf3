import json
from pathlib import Path

import pytest

from tbactl.cli.main import main
from tbactl.config.run_record import RunRecord
from tbactl.errors import ChildFailedError
from tests.support.recipes import write_recipe


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.fault("I-69")
def test_dry_run_says_profile_first_then_the_plan_and_writes_the_configuration(tmp_path, capsys):
    assert main(["run", write_recipe(tmp_path), "--profile", "cpu", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| recipe recipe | profile cpu: asked for with --profile")
    assert any(line.split()[:1] == ["trainer"] for line in lines)
    assert "Nothing was started" in lines[-1]
    (run,) = (path for path in Path("runs").iterdir() if not path.is_symlink())
    assert {file.name for file in (run / "config").iterdir()} == {"resolved.json", "trainer-0.json", "searcher-0.json"}


def test_dry_run_with_json_is_one_document(tmp_path, capsys):
    overrides = ["--set", "searchers.top_p=0.5", "--set", "trainer.max_steps=3"]
    assert main(["run", write_recipe(tmp_path), "--dry-run", "--json", "--profile", "gpu", *overrides]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["profile"] == "gpu"
    assert document["config"]["trainer"]["max_steps"] == 3
    assert len(document["warnings"]) >= 1
    assert Path(document["run_directory"], "config", "resolved.json").is_file()


def test_warnings_go_to_standard_error(tmp_path, capsys):
    main(["run", write_recipe(tmp_path), "--dry-run", "--set", "searchers.top_p=0.5"])
    assert "warning: --set: searchers.top_p = 0.5" in capsys.readouterr().err


def started(monkeypatch, *, exit_code=0, error=None):
    """What `run_to_end` was called with, in place of a run."""
    calls = []

    def run_to_end(config, *, recipe_name, profile, resume, plain, on_prepared):
        calls.append({"config": config, "recipe": recipe_name, "profile": profile, "resume": resume, "plain": plain})
        print("progress")
        directory = Path("runs/latest")
        directory.mkdir(parents=True, exist_ok=True)
        record = RunRecord(
            name=config.name,
            recipe=recipe_name,
            profile=profile,
            attempt=1,
            pid=1,
            pid_start_ticks=1,
            shm_directory=Path("x"),
            started_at="2026-01-01T00:00:00Z",
            outcome="finished",
            exit_code=exit_code,
        )
        (directory / "run.json").write_text(record.model_dump_json())
        on_prepared(directory)
        (directory / "config").mkdir(exist_ok=True)
        checkpoint = directory / "checkpoints" / "step_000010"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "manifest.json").write_text("{}")
        if error is not None:
            raise error
        (directory / "config" / "resolved.json").write_text(config.model_dump_json())
        return exit_code

    monkeypatch.setattr("tbactl.supervision.supervisor.run_to_end", run_to_end)
    return calls


@pytest.mark.parametrize("exit_code", [0, 130, 143])
def test_run_hands_the_configuration_to_the_supervisor_and_returns_its_exit_code(tmp_path, monkeypatch, exit_code):
    calls = started(monkeypatch, exit_code=exit_code)
    assert main(["run", write_recipe(tmp_path), "--profile", "cpu", "--plain", "--set", "seed=7"]) == exit_code
    (call,) = calls
    assert call["config"].seed == 7
    assert (call["recipe"], call["profile"], call["resume"], call["plain"]) == ("recipe", "cpu", None, True)


def test_run_with_json_keeps_standard_output_for_the_result(tmp_path, monkeypatch, capsys):
    started(monkeypatch)
    assert main(["run", write_recipe(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["outcome"] == "finished"
    assert "progress" in captured.err


def test_resume_takes_configuration_and_profile_from_the_run(tmp_path, monkeypatch):
    calls = started(monkeypatch)
    main(["run", write_recipe(tmp_path), "--profile", "gpu", "--set", "seed=7"])
    assert main(["run", "--resume", "latest", "--set", "trainer.max_steps=200"]) == 0
    assert calls[1]["config"].seed == 7
    assert calls[1]["config"].trainer.max_steps == 200
    assert (calls[1]["profile"], calls[1]["resume"]) == ("gpu", Path("runs/latest"))


@pytest.mark.fault("I-53")
def test_resume_with_a_profile_is_a_usage_error(tmp_path, monkeypatch):
    started(monkeypatch)
    main(["run", write_recipe(tmp_path)])
    assert main(["run", "--resume", "latest", "--profile", "cpu"]) == 2


@pytest.mark.fault("I-86")
def test_missing_package_refuses_a_run_but_only_warns_in_a_dry_run(tmp_path, monkeypatch, capsys):
    calls = started(monkeypatch)
    monkeypatch.setattr("tbactl.config.packages.find_spec", lambda name: None)
    arguments = ["run", write_recipe(tmp_path), "--set", "searchers.engine=vllm"]
    assert main(arguments) == 3
    assert "needs the package 'vllm'" in capsys.readouterr().err
    assert calls == []
    assert main([*arguments, "--dry-run"]) == 0


def test_sft_recipe_is_refused_with_the_right_command(tmp_path, capsys):
    stage = '[[stages]]\nname = "a"\nmixture = {x = 1.0}\nnum_tokens = 1\nlearning_rate = 1.0\n'
    path = write_recipe(tmp_path, 'kind = "sft"\n[task]\nkind = "fake"\n' + stage)
    assert main(["run", path]) == 3
    assert "use `tbactl sft recipe`" in capsys.readouterr().err


def test_run_with_json_that_fails_prints_its_own_record_and_ends_with_one_json_error(tmp_path, monkeypatch, capsys):
    started(monkeypatch, error=ChildFailedError("the trainer died"))
    assert main(["run", write_recipe(tmp_path), "--json"]) == 5
    captured = capsys.readouterr()
    assert json.loads(captured.out)["run_directory"] == str(Path("runs/latest").resolve())
    assert json.loads(captured.err[captured.err.index("{") :])["problems"] == ["the trainer died"]


@pytest.mark.parametrize("steps", [5, 10])
def test_resume_of_a_run_that_has_reached_its_steps_is_refused(tmp_path, monkeypatch, capsys, steps):
    calls = started(monkeypatch)
    main(["run", write_recipe(tmp_path)])
    assert main(["run", "--resume", "latest", "--set", f"trainer.max_steps={steps}"]) == 3
    assert f"the run has reached trainer.max_steps = {steps}" in capsys.readouterr().err
    assert len(calls) == 1


def test_dry_run_of_a_resume_checks_the_run_and_makes_no_other(tmp_path, monkeypatch):
    started(monkeypatch)
    main(["run", write_recipe(tmp_path)])
    assert main(["run", "--resume", "latest", "--dry-run"]) == 0
    assert [path.name for path in Path("runs").iterdir()] == ["latest"]
    Path("runs/latest/checkpoints/step_000010/manifest.json").unlink()
    assert main(["run", "--resume", "latest", "--dry-run"]) == 7


@pytest.mark.parametrize("directory", ["a-file", "/proc/x", "n" * 300, "~nobody-of-that-name/x"])
def test_unusable_runs_dir_is_one_sentence_that_names_it(tmp_path, capsys, directory):
    Path("a-file").write_text("")
    assert main(["run", write_recipe(tmp_path), "--dry-run", "--set", f"runs_dir={directory}"]) == 3
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith(f"error: runs_dir = {directory!r} cannot be used: ")


def test_directory_of_a_dry_run_is_no_run(tmp_path, capsys):
    main(["run", write_recipe(tmp_path), "--dry-run"])
    assert main(["stop", "no-such-run"]) == 3
    assert "newest runs: none" in capsys.readouterr().err
