import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tbactl import __version__
from tbactl.cli.main import COMMANDS, main
from tests.support.recipes import write_recipe


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TBACTL_DEBUG", raising=False)


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tbactl {__version__}\n"


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_no_arguments_shows_help(capsys):
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_group_without_a_command_is_a_usage_error(capsys):
    assert main(["tasks"]) == 2
    assert "See `tbactl tasks --help`." in capsys.readouterr().err


def test_unknown_command_is_a_usage_error_with_a_suggestion(capsys):
    assert main(["rum"]) == 2
    assert "Did you mean 'run'?" in capsys.readouterr().err


def test_unknown_option_is_a_usage_error_that_names_the_command(capsys):
    assert main(["run", "--no-such-option"]) == 2
    assert "See `tbactl run --help`." in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", "smoke", "--resume", "x"], ["run", "smoke", "--profile", "tpu"], ["stop", "--timeout", "-1"]],
)
def test_contradicting_or_wrong_options_are_usage_errors(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err


def test_configuration_mistakes_are_numbered_and_exit_3(tmp_path, capsys):
    path = write_recipe(tmp_path)
    assert main(["run", path, "--set", "a.b=1", "--set", "trainer.max_steps=0", "--set", "seed=x", "--dry-run"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("error: 3 problems\n  1. --set: ")
    assert "Traceback" not in err


def test_single_mistake_is_one_message(tmp_path, capsys):
    assert main(["run", write_recipe(tmp_path), "--set", "trainer.max_steps=0", "--dry-run"]) == 3
    assert capsys.readouterr().err == "error: --set: trainer.max_steps = 0: must be at least 1.\n"


def test_failure_with_json_is_json_on_standard_error(tmp_path, capsys):
    assert main(["run", write_recipe(tmp_path), "--set", "trainer.max_steps=0", "--dry-run", "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err) == {
        "error": "ConfigError",
        "exit_code": 3,
        "problems": ["--set: trainer.max_steps = 0: must be at least 1."],
    }


def test_usage_error_with_json_is_json(capsys):
    assert main(["rum", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["exit_code"] == 2


def test_debug_variable_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("TBACTL_DEBUG", "1")
    with pytest.raises(ValueError, match="no recipe"):
        main(["run", "no-such-recipe"])


def test_message_from_a_file_cannot_command_the_terminal(tmp_path, capsys):
    path = tmp_path / "evil.toml"
    path.write_text('"\\u001b[31mred" = 1\n')
    assert main(["run", str(path)]) == 3
    assert "\x1b" not in capsys.readouterr().err


def test_interrupt_in_a_command_exits_130(monkeypatch, capsys):
    def interrupted(run, *, plain):
        raise KeyboardInterrupt

    monkeypatch.setattr("tbactl.dashboard.watch.watch_run", interrupted)
    monkeypatch.setattr("tbactl.cli.commands.watch.find_run", lambda name: name)
    assert main(["watch", "x"]) == 130


@pytest.mark.parametrize("command", ["watch", "stop"])
def test_command_on_a_run_that_does_not_exist_exits_3(command, capsys):
    assert main([command, "no-such-run"]) == 3
    assert "there is no run 'no-such-run'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_commands(shell, monkeypatch, capsys):
    monkeypatch.setenv("_TBACTL_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "tbactl re")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "tbactl re")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit):
        main([])
    assert "recipes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["n" * 300, "~nobody-of-that-name", "a\0b"])
def test_impossible_run_name_exits_3(name, capsys):
    assert main(["stop", name]) == 3
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(("path", "what"), [(".", "a directory"), ("/dev/null", "not a regular file")])
def test_recipe_that_is_no_file_is_told_what_it_is(path, what, capsys):
    assert main(["run", path]) == 3
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["recipes", "list"]])
def test_full_standard_output_is_one_sentence(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tbactl.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    assert done.returncode == 6
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_nested_too_deeply_exits_3(tmp_path, capsys):
    path = write_recipe(tmp_path, "x = " + "[" * 5000 + "]" * 5000)
    assert main(["run", path]) == 3
    assert main(["run", write_recipe(tmp_path), "--set", "x=" + "[" * 5000]) == 3
    assert capsys.readouterr().err.count("nested too deeply") == 2


def test_closed_standard_output_is_no_failure(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["tasks", "list"]) == 0
    sys.stdout.close()


def test_text_that_the_locale_cannot_show_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"completion": "\\u00fc\\u4e94", "gold": "1"}\n')
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["tasks", "score", "fake", str(tmp_path / "a.jsonl")]) == 0
    stream.flush()
    assert b"\\xfc\\u4e94" in stream.buffer.getvalue()
