"""The hardware file, costs from a run, and costs from peaks."""

from __future__ import annotations

import json

import pytest

from tbactl.config.layout import RunLayout
from tbactl.errors import ConfigError
from tbactl.planning.estimate import scenario_of
from tbactl.planning.hardware import CostsSection, Hardware, MachineSection, WorkloadSection, load_hardware, to_toml
from tbactl.planning.measured import group_spread, measured_hardware
from tbactl.planning.simulation import simulate
from tests.support.planning import LARGE, make_run, run_config, steps

PEAKS = MachineSection(flops_per_s=3e14, memory_bytes_per_s=2e12, link_bytes_per_s=2e10)


def written(directory, text):
    path = directory / "hw.toml"
    path.write_text(text)
    return path


def problem(directory, text):
    with pytest.raises(ConfigError) as caught:
        load_hardware(written(directory, text))
    return str(caught.value)


def test_file_is_read(tmp_path):
    hardware = load_hardware(written(tmp_path, "[machine]\ncores = 2\n[costs]\ngenerate_s = 0.5\nbarrier = true\n"))
    assert (hardware.machine.cores, hardware.costs.generate_s, hardware.costs.barrier) == (2, 0.5, True)
    assert hardware.model is None


def test_unknown_key_is_refused_with_its_line_and_a_suggestion(tmp_path):
    sentence = problem(tmp_path, "[costs]\n\ngenerate_sec = 0.5\n")
    assert "hw.toml:3" in sentence and "did you mean 'costs.generate_s'?" in sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[costs]\ntrain_s = -1.0\n", "costs.train_s = -1.0: must be greater than 0"),
        ("[costs]\nfixed_share = 2.0\n", "must be at most 1"),
        ("[machine]\ncores = 2.5\n", "must be an integer"),
        ("[machine]\ncores = 2\nnum_devices = 4\n", "write cores = 0 into the file"),
        ("[model]\nnum_parameters = 10\n", "model.num_layers is missing"),
        ("[machine\n", "not valid TOML"),
        ("[workload]\ntrainable_share = 0.0\n", "must be greater than 0"),
    ],
)
def test_mistake_in_the_file_is_one_sentence(tmp_path, text, expected):
    assert expected in problem(tmp_path, text)


def test_all_mistakes_are_reported_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_hardware(written(tmp_path, "[costs]\ntrain_s = 0\ngenerate_s = 0\nload_s = -1\n"))
    assert len(caught.value.problems) == 3


def test_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_hardware(tmp_path / "none.toml")


def test_file_wins_over_what_was_measured(tmp_path):
    measured = Hardware(costs=CostsSection(generate_s=0.5, train_s=0.25), machine=MachineSection(cores=2))
    hardware = load_hardware(written(tmp_path, "[costs]\ngenerate_s = 2.0\n"), measured=measured)
    assert (hardware.costs.generate_s, hardware.costs.train_s, hardware.machine.cores) == (2.0, 0.25, 2)
    assert load_hardware(None, measured=measured) == measured


def test_written_file_reads_as_the_same(tmp_path):
    hardware = Hardware(
        machine=MachineSection(cores=2, currency='"\\ EUR'),
        costs=CostsSection(generate_s=0.125, train_s=2.5, barrier=True),
        workload=WorkloadSection(completion_tokens=12.5),
        model=LARGE,
    )
    assert load_hardware(written(tmp_path, to_toml(hardware, comment="test"))) == hardware


def estimated(**settings):
    return scenario_of(
        run_config(policy__dtype="bfloat16", **settings),
        hardware=Hardware(machine=PEAKS),
        model=LARGE,
        max_steps=10,
        seed=0,
    )


def test_costs_from_peaks_are_said_to_be_rough():
    costs = estimated().costs
    assert costs.estimated == ("generate_s", "train_s", "publish_s", "load_s")
    # 15 GB at 40 % of 20 GB/s.
    assert costs.load_s == costs.publish_s == pytest.approx(15 / 8)


def test_estimated_training_is_arithmetic():
    scenario = estimated(searchers__max_new_tokens=200, searchers__max_prompt_tokens=80)
    # 8 FLOP for each parameter and token: 100 of the completion and a fourth of the prompt's 40.
    assert scenario.costs.train_s == pytest.approx(8 * 7.5e9 * 110 / (0.4 * 3e14))


def test_estimated_generation_of_few_sequences_reads_the_weights_for_each_token():
    scenario = estimated(
        searchers__max_concurrent_groups=1, searchers__max_new_tokens=200, searchers__max_prompt_tokens=2
    )
    read_s = 2 * 7.5e9 / (0.4 * 2e12)
    assert scenario.costs.generate_s * 4 == pytest.approx(100 * read_s, rel=0.02)


def test_estimated_generation_gets_cheaper_with_more_sequences():
    few, many = (estimated(searchers__max_concurrent_groups=number).costs.generate_s for number in (1, 16))
    assert many < few / 4


def test_what_is_given_is_not_estimated():
    hardware = Hardware(machine=PEAKS, costs=CostsSection(generate_s=1.0, load_s=0.5))
    costs = scenario_of(run_config(), hardware=hardware, model=LARGE, max_steps=10, seed=0).costs
    assert (costs.generate_s, costs.load_s, costs.estimated) == (1.0, 0.5, ("train_s", "publish_s"))


def test_costs_that_cannot_be_known_say_what_is_missing():
    with pytest.raises(ConfigError, match=r"costs.generate_s and costs.train_s.*machine.flops_per_s.*\[model\]"):
        scenario_of(run_config(), hardware=Hardware(), model=None, max_steps=10, seed=0)


def test_evaluation_that_was_not_measured_takes_as_long_as_generating_it():
    hardware = Hardware(costs=CostsSection(generate_s=0.5, train_s=1.0))
    run = run_config(evaluation__num_prompts=20)
    assert scenario_of(run, hardware=hardware, model=None, max_steps=10, seed=0).costs.evaluate_s == 10.0


def test_spread_of_a_group_is_that_of_its_longest_completion():
    assert group_spread([7] * 30, group_size=4) == (0.0, 1.0)
    # The longest of two out of {1, 2}: 1 with probability 1/4. Mean 1.75, standard deviation sqrt(3) / 4.
    assert group_spread([1, 2] * 20, group_size=2) == pytest.approx((3**0.5 / 4 / 1.75, 1.5 / 1.75), abs=1e-3)
    assert group_spread([1, 2, 3], group_size=2) is None


def test_costs_of_a_run_are_what_its_metrics_say(tmp_path):
    hardware = measured_hardware(make_run(tmp_path, steps(20)))
    costs = hardware.costs
    assert costs.train_s == pytest.approx(1.6 / 16)
    assert costs.publish_s == pytest.approx(0.4)
    assert costs.load_s == pytest.approx(0.2)
    # Of 40 s it loaded weights for 19 * 0.2.
    assert costs.generate_s == pytest.approx((40 - 3.8) / 400)
    assert costs.score_s == 0.0
    assert (hardware.machine.cores, hardware.machine.memory_gib) == (2, 8.0)
    assert hardware.workload.trainable_share == pytest.approx(0.8)
    assert hardware.workload.completion_tokens == 30.0


def test_idle_searcher_with_an_empty_ring_waits_for_its_rewards(tmp_path):
    costs = measured_hardware(make_run(tmp_path, steps(20, idle=0.5))).costs
    assert costs.score_s == pytest.approx(40 / 400)
    assert costs.generate_s == pytest.approx((20 - 3.8) / 400)


def test_idle_searcher_with_a_full_ring_waits_for_the_trainer(tmp_path):
    assert measured_hardware(make_run(tmp_path, steps(20, idle=0.5, ring_fill=0.9))).costs.score_s == 0.0


def test_costs_are_those_of_a_process_that_has_a_core(tmp_path):
    config = run_config(searchers__num_searchers=3)
    costs = measured_hardware(make_run(tmp_path, steps(20), config=config)).costs
    # Four processes on two cores.
    assert costs.train_s == pytest.approx(1.6 / 16 / 2)


def test_searchers_of_ray_had_cores_of_their_own(tmp_path):
    # Four searchers elsewhere, and one rank on both cores of this machine.
    run = run_config(searchers__num_searchers=4, searchers__launcher="ray")
    hardware = measured_hardware(make_run(tmp_path, steps(10), config=run))
    assert hardware.costs.measured_cores == 2
    assert hardware.costs.train_s == pytest.approx(1.6 / 16)
    assert hardware.costs.load_s == pytest.approx(0.2)


def test_searcher_that_had_more_cores_than_the_trainer_is_measured_as_it_was(tmp_path):
    directory = make_run(tmp_path, steps(20))
    environment = RunLayout(directory).environment
    environment.write_text(environment.read_text().replace("[0, 1]", "[0, 1, 2]"))
    hardware = measured_hardware(directory)
    run = run_config(replay__max_samples_per_insert=1.0, trainer__max_steps=400)
    scenario = scenario_of(run, hardware=hardware, model=None, max_steps=400, seed=0)
    # One core for the trainer and two for the searcher, which made 10 trajectories a second.
    assert simulate(scenario).trajectories_per_s == pytest.approx(10.0, rel=0.1)


def test_completion_with_another_line_separator_is_one_line(tmp_path):
    directory = make_run(tmp_path, steps(5))
    line = json.dumps({"completion": "a\u2028b\x85c", "num_tokens": 3}, ensure_ascii=False) + "\n"
    RunLayout(directory).trajectories.write_text(line * 30, encoding="utf-8")
    assert measured_hardware(directory).costs.generate_spread == 0.0


def test_run_says_how_much_longer_a_group_takes_than_its_completions(tmp_path):
    directory = make_run(tmp_path, steps(5))
    lines = [json.dumps({"num_tokens": length}) + "\n" for length in [1, 2] * 20]
    RunLayout(directory).trajectories.write_text("".join(lines), encoding="utf-8")
    # The longest of four out of {1, 2}: 1 with probability 1/16.
    assert measured_hardware(directory).costs.mean_share == pytest.approx(1.5 / (2 - 1 / 16), abs=1e-3)


def test_steps_done_again_after_a_resume_count_once(tmp_path):
    lines = [*steps(10, seconds=9.0), *steps(12)[4:]]
    again = measured_hardware(make_run(tmp_path / "a", lines)).costs
    once = measured_hardware(make_run(tmp_path / "b", [*steps(10, seconds=9.0)[:4], *steps(12)[4:]])).costs
    assert again == once


def test_prompts_that_come_again_are_counted(tmp_path):
    lines = steps(20)
    for line in lines:
        line["metrics"] |= {"replay/prompts/value": 7.0, "replay/eligible_prompts/value": 7.0}
    workload = measured_hardware(make_run(tmp_path, lines)).workload
    assert (workload.num_prompts, workload.trainable_share) == (7, 1.0)


def test_run_on_devices_measures_without_sharing(tmp_path):
    hardware = measured_hardware(make_run(tmp_path, steps(5), gpus=["0", "1"]))
    assert (hardware.machine.cores, hardware.machine.num_devices) == (0, 2)


def test_run_without_steps_cannot_be_measured(tmp_path):
    with pytest.raises(ConfigError, match="2 optimizer steps"):
        measured_hardware(make_run(tmp_path, steps(2)))


def test_damaged_metrics_are_named_with_their_line(tmp_path):
    directory = make_run(tmp_path, steps(5))
    with RunLayout(directory).metrics.open("a") as file:
        file.write("{\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl:6"):
        measured_hardware(directory)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("metrics", {"step": 6}),
        ("metrics", {"step": 6, "metrics": {}}),
        ("metrics", {"step": "six", "metrics": {}}),
        ("metrics", ["step"]),
        ("trajectories", {"reward": 1.0}),
        ("evaluations", {"seconds": "long"}),
    ],
)
def test_line_that_lacks_what_is_needed_is_damage_and_no_traceback(tmp_path, file, line):
    directory = make_run(tmp_path, steps(5))
    with getattr(RunLayout(directory), file).open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=r"costs cannot be read.*damaged"):
        measured_hardware(directory)


def test_directory_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        measured_hardware(tmp_path)
