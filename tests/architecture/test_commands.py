"""Every command has help, a line in the list of commands that says the same, and its place in the documentation."""

import re
from pathlib import Path

import pytest

from tbactl.cli.main import COMMANDS, load_command, main

ROOT = Path(__file__).parents[2]
DOCUMENTATION = (ROOT / "docs" / "cli.md").read_text()
SUBCOMMANDS = [
    (name, subcommand) for name in COMMANDS for subcommand in getattr(load_command(name), "commands", {}) if subcommand
]


def help_of(arguments, capsys):
    assert main([*arguments, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_help_that_begins_as_the_list_says(name, capsys):
    _, summary = COMMANDS[name]
    assert summary in " ".join(help_of([name], capsys).split())


@pytest.mark.parametrize(("name", "subcommand"), SUBCOMMANDS)
def test_subcommand_has_help(name, subcommand, capsys):
    assert load_command(name).commands[subcommand].help
    assert "Usage:" in help_of([name, subcommand], capsys)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_a_section_in_the_documentation(name):
    assert f"\n## tbactl {name}\n" in DOCUMENTATION


@pytest.mark.parametrize(("name", "subcommand"), SUBCOMMANDS)
def test_subcommand_is_documented(name, subcommand):
    assert f"tbactl {name} {subcommand}" in DOCUMENTATION


def options_of(command):
    return [option for parameter in command.params for option in parameter.opts if option.startswith("--")]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_documented_and_has_help(name):
    command = load_command(name)
    section = DOCUMENTATION.partition(f"\n## tbactl {name}\n")[2].partition("\n## ")[0]
    for leaf in getattr(command, "commands", {"": command}).values():
        for option in options_of(leaf):
            assert re.search(rf"{option}\b", section) or option == "--help", f"{option} of {name} is not in docs/cli.md"
        for parameter in leaf.params:
            assert getattr(parameter, "help", None), f"{parameter.name} of {name} has no help"


@pytest.mark.fault("I-71")
@pytest.mark.parametrize("command", re.findall(r"tbactl ([a-z]+)", DOCUMENTATION))
def test_documented_command_exists(command):
    assert command in COMMANDS
