from __future__ import annotations

import json

import pytest

from tbactl.cli.commands.plan import _ranges
from tbactl.cli.main import main
from tbactl.planning.sweep import parse_counts
from tests.support.planning import make_run, steps
from tests.support.recipes import write_recipe

COSTS = "[costs]\ngenerate_s = 0.2\ntrain_s = 0.05\n"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path)


@pytest.fixture
def hardware(tmp_path):
    path = tmp_path / "hw.toml"
    path.write_text(COSTS)
    return str(path)


def plan_json(capsys, *arguments):
    assert main(["plan", *arguments, "--steps", "30", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_says_what_a_run_will_do(recipe, hardware, capsys):
    assert main(["plan", recipe, "--hardware", hardware, "--searchers", "1..5", "--steps", "30"]) == 0
    out = capsys.readouterr().out
    assert "best: " in out and "(searchers : trainer ranks)" in out
    assert "idle trainer" in out and "a device for each process" in out
    assert "memory: not known" in out


def test_plan_of_the_recipes_own_number_is_one_line_and_no_verdict(recipe, hardware, capsys):
    assert main(["plan", recipe, "--hardware", hardware, "--steps", "30"]) == 0
    assert "best:" not in capsys.readouterr().out


def test_plan_as_json_has_every_point_and_repeats(recipe, hardware, capsys):
    arguments = (recipe, "--hardware", hardware, "--searchers", "1,2,4", "--set", "replay.max_samples_per_insert=1.0")
    document = plan_json(capsys, *arguments)
    assert document == plan_json(capsys, *arguments)
    assert [point["num_searchers"] for point in document["points"]] == [1, 2, 4]
    # Four searchers make what the trainer uses.
    assert document["best_num_searchers"] == 4
    rates = [point["new_per_s"] for point in document["points"]]
    assert rates == sorted(rates)


def test_plan_counts_devices_and_their_price(recipe, tmp_path, capsys):
    path = tmp_path / "priced.toml"
    path.write_text(COSTS + "[machine]\nprice_per_hour = 3.0\n")
    (point,) = plan_json(capsys, recipe, "--hardware", str(path), "--searchers", "3")["points"]
    assert point["num_devices"] == 4
    assert point["price"] == pytest.approx(3.0 * point["device_hours"])
    assert point["device_hours"] == pytest.approx(4 * point["run_s"] / 3600)


def test_plan_warns_of_what_will_not_fit(recipe, tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text(
        COSTS
        + "[machine]\nmemory_gib = 1.0\nnum_devices = 2\n[model]\nnum_parameters = 1_000_000_000\nnum_layers = 16\n"
        "hidden_size = 2048\nnum_key_value_heads = 8\nhead_size = 64\nvocabulary_size = 32000\n"
    )
    assert main(["plan", recipe, "--hardware", str(path), "--searchers", "1..2", "--steps", "30"]) == 0
    captured = capsys.readouterr()
    assert "warning: 1 to 2 searcher(s): a trainer rank needs" in captured.err
    assert "warning: 2 searcher(s): 3 processes share 2 devices" in captured.err
    assert "log-prob chunk" in captured.out


MACHINE = "[machine]\ncores = 2\nmemory_gib = 8\n"


def test_plan_of_the_cpu_recipe_warns_of_memory(tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text(COSTS + MACHINE)
    arguments = ["plan", "gsm8k", "--profile", "cpu", "--hardware", str(path), "--searchers", "1,8", "--steps", "5"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "warning: 8 searcher(s): 13.8 GiB do not fit into the machine's 8 GiB." in captured.err
    assert "libraries 1.17" in captured.out and "2 cores shared by all processes" in captured.out


def test_plan_with_ray_counts_only_the_trainer_on_this_machine(recipe, tmp_path, monkeypatch, capsys):
    # Whether the package is here does not matter for a plan.
    monkeypatch.setattr("tbactl.config.packages.find_spec", lambda name: object())
    path = tmp_path / "small.toml"
    path.write_text(
        COSTS + MACHINE + "[model]\nnum_parameters = 10_000_000\nnum_layers = 4\nhidden_size = 64\n"
        "num_key_value_heads = 1\nhead_size = 64\nvocabulary_size = 1000\n"
    )
    arguments = [recipe, "--hardware", str(path), "--searchers", "16", "--set", "searchers.launcher=ray"]
    assert main(["plan", *arguments, "--steps", "30"]) == 0
    captured = capsys.readouterr()
    assert "2 cores for the trainer; searchers are on other machines (Ray)" in captured.out
    assert "on its own machine" in captured.out and "bridge     0.10 GiB" in captured.out
    assert "warning" not in captured.err
    document = plan_json(capsys, *arguments)
    assert document["searchers_are_elsewhere"] is True
    assert plan_json(capsys, *arguments[:-2])["searchers_are_elsewhere"] is False


def test_devices_of_this_machine_are_the_trainers_with_ray(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tbactl.config.packages.find_spec", lambda name: object())
    path = tmp_path / "small.toml"
    path.write_text(COSTS + "[machine]\nnum_devices = 1\n")
    assert main(["plan", recipe, "--hardware", str(path), "--searchers", "3", "--steps", "5"]) == 0
    assert "4 processes share 1 devices" in capsys.readouterr().err
    arguments = ["plan", recipe, "--hardware", str(path), "--searchers", "3", "--steps", "5"]
    assert main([*arguments, "--set", "searchers.launcher=ray"]) == 0
    assert not capsys.readouterr().err


def test_best_number_is_one_that_fits_and_warnings_name_the_numbers_they_are_about(recipe, tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text(COSTS + "[machine]\nnum_devices = 3\n")
    arguments = [recipe, "--hardware", str(path), "--set", "replay.max_samples_per_insert=1.0"]
    assert plan_json(capsys, *arguments, "--searchers", "1..4")["best_num_searchers"] == 2
    assert main(["plan", *arguments, "--searchers", "1..4", "--steps", "30"]) == 0
    out = capsys.readouterr().out
    assert "2*" in out and "3!" in out and "4!" in out and "the most that fits" in out
    assert main(["plan", *arguments, "--searchers", "4", "--steps", "30"]) == 0
    out = capsys.readouterr().out
    assert "4!" in out and "4*" not in out
    assert main(["plan", *arguments, "--searchers", "3,4", "--steps", "30"]) == 0
    assert "no number that was looked at fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("numbers", "shown"), [([3], "3"), ([1, 4], "1, 4"), ([1, 2, 3, 8, 10, 11], "1 to 3, 8, 10 to 11")]
)
def test_numbers_of_searchers_are_ranges_only_where_none_is_left_out(numbers, shown):
    assert _ranges(numbers) == f"{shown} searcher(s)"


def test_plan_from_a_run_and_the_file_that_it_writes_agree(recipe, tmp_path, capsys):
    run = make_run(tmp_path / "run", steps(10))
    (run / "run.json").write_text("{}")
    measured = plan_json(capsys, recipe, "--from", str(run), "--write-hardware", "hw.toml")
    written = plan_json(capsys, recipe, "--hardware", "hw.toml")
    assert written["points"][0]["run_s"] == pytest.approx(measured["points"][0]["run_s"], rel=0.01)
    assert main(["plan", recipe, "--from", str(run), "--write-hardware", "hw.toml"]) == 3
    assert "exists" in capsys.readouterr().err


def test_plan_draws_its_curve(recipe, hardware, tmp_path, capsys):
    plan_json(capsys, recipe, "--hardware", hardware, "--searchers", "1..3", "--figure", str(tmp_path / "curve.png"))
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_figure_that_cannot_be_written_is_an_error(recipe, hardware, capsys):
    assert main(["plan", recipe, "--hardware", hardware, "--steps", "5", "--figure", "no/such/curve.png"]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_plan_without_costs_says_how_to_get_them(recipe, capsys):
    assert main(["plan", recipe]) == 3
    error = capsys.readouterr().err
    assert "--from RUN" in error and "`tbactl plan RECIPE --from latest`" in error


def test_plan_of_a_recipe_for_another_command_is_refused(capsys):
    assert main(["plan", "sft-gsm8k"]) == 3
    assert "tbactl sft" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["plan"], ["plan", "smoke", "--steps", "0"], ["plan", "smoke", "--write-hardware", "x"]]
)
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "x", "3..1", "1..", "1..2000", "", "1,,2", "-1"])
def test_counts_that_mean_nothing_are_refused(recipe, hardware, text, capsys):
    assert main(["plan", recipe, "--hardware", hardware, f"--searchers={text}"]) == 3
    assert "--searchers" in capsys.readouterr().err


def test_counts_are_thinned_out_and_keep_both_ends():
    assert parse_counts("4") == [4]
    assert parse_counts("8, 1,2") == [1, 2, 8]
    assert parse_counts("1..8") == [1, 2, 3, 4, 5, 6, 7, 8]
    counts = parse_counts("1..64")
    assert counts[0] == 1 and counts[-1] == 64 and len(counts) < 20
    assert parse_counts("2..3,62..64") == [2, 3, 62, 64]
