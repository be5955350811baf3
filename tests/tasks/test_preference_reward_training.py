"""Training reward models: the Bradley-Terry fit against scikit-learn, constructed pairs, data, cards, the command."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from tbactl.cli.main import main
from tbactl.config.reward import RewardConfig, RewardDataSection
from tbactl.errors import ConfigError, TaskError
from tbactl.evaluation.estimates import share
from tbactl_preference.docstring_text import words
from tbactl_preference.options import PreferenceOptions
from tbactl_preference.pairs import SummaryPair
from tbactl_preference.reward_bradley_terry import bradley_terry_loss, fit_head
from tbactl_preference.reward_corruptions import KINDS, constructed_pairs
from tbactl_preference.reward_data import HELD_OUT_SEED, load_comparisons
from tbactl_preference.reward_models import EMBEDDED, load_reward_model
from tbactl_preference.reward_pairs import PreferencePair
from tbactl_preference.reward_quality import Quality
from tbactl_preference.reward_tables import common_prompt, read_comparisons
from tbactl_preference.reward_text import longest_shared_run
from tbactl_preference.reward_training import train_reward
from tbactl_preference.sources import load_pairs
from tests.support.reward_classifiers import WORDS, build_classifier, remove_weights

NUM_TEST_DOCUMENTS = 30


@pytest.fixture(scope="module")
def test_pairs():
    return load_pairs(PreferenceOptions(), split="test")


def features(*, num_pairs=400, num_features=6, seed=0):
    """Comparisons by a hidden linear judge with noise, so that no head separates them."""
    generator = np.random.default_rng(seed)
    better, worse = generator.normal(size=(2, num_pairs, num_features)) * np.arange(1, num_features + 1)
    margin = (better - worse) @ generator.normal(size=num_features)
    flip = generator.random(num_pairs) > expit(margin)
    better[flip], worse[flip] = worse[flip].copy(), better[flip].copy()
    return better, worse


def write_rows(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def comparison_rows(*, num_rows=60):
    """The better answer ends like a sentence."""
    draw = random.Random(0)
    names = ["arrays", "tables", "graphs", "matrices", "series", "frames"]
    return [
        {
            "prompt": f"numpy: sort_{number}(a)\nSorts {draw.choice(names)} of kind {number} along one axis.",
            "chosen": f"Sort {draw.choice(names)} along an axis.",
            "rejected": f"sort sort {draw.choice(names)} and the",
        }
        for number in range(num_rows)
    ]


def lexical_config(tmp_path, source, **changes):
    return RewardConfig.model_validate(
        {
            "name": "model",
            "runs_dir": tmp_path,
            "data": {"source": source, "prompt_column": "prompt"},
            "model": {"kind": "lexical", "l2": 0.01},
            "threads": 1,
            **changes,
        }
    )


# ---------------------------------------------------------------------------------------------------------------------
# Bradley-Terry
# ---------------------------------------------------------------------------------------------------------------------


def test_loss_is_the_cross_entropy_of_the_difference():
    chosen, rejected = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = -np.log(expit((chosen - rejected).numpy())).mean()
    assert bradley_terry_loss(chosen, rejected).item() == pytest.approx(expected)
    assert bradley_terry_loss(chosen + 3.0, rejected + 3.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
def test_linear_head_is_logistic_regression_without_intercept_on_differences(l2):
    better, worse = features()
    head = fit_head(better, worse, l2=l2, num_hidden=0, seed=0)
    differences = (better - worse) / head.deviation
    signs = np.where(np.arange(len(differences)) % 2, 1.0, -1.0)  # it wants both classes
    oracle = LogisticRegression(C=1 / (l2 * len(differences)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(differences * signs[:, None], signs)
    assert head.direct == pytest.approx(oracle.coef_[0], abs=1e-4)
    assert head(better) - head(worse) == pytest.approx(oracle.decision_function(differences), abs=1e-4)


def test_head_with_hidden_units_learns_what_is_not_linear():
    generator = np.random.default_rng(0)
    better, worse = generator.uniform(-0.5, 0.5, (400, 1)), generator.choice([-1, 1], (400, 1)) * 2.0
    linear, curved = (fit_head(better, worse, l2=1e-4, num_hidden=units, seed=0) for units in (0, 4))
    assert (curved(better) > curved(worse)).mean() > 0.99 > (linear(better) > linear(worse)).mean()
    assert curved.num_parameters == 1 + 4 + 4 + 4


def test_a_feature_that_never_varies_changes_no_score():
    better, worse = features()
    constant = np.ones((len(better), 1))
    head = fit_head(better, worse, l2=1e-2, num_hidden=0, seed=0)
    more = fit_head(np.hstack([better, constant]), np.hstack([worse, constant]), l2=1e-2, num_hidden=0, seed=0)
    assert more(np.hstack([better, constant])) == pytest.approx(head(better), abs=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Constructed pairs
# ---------------------------------------------------------------------------------------------------------------------


def test_constructed_pairs_are_the_same_for_a_seed_and_others_for_another(test_pairs):
    few = test_pairs[:40]
    first, again, other = (constructed_pairs(few, kinds=KINDS, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert {pair.kind for pair in first} == set(KINDS)
    assert len(first) > 0.9 * len(KINDS) * len(few)


def test_constructed_pairs_hold_the_human_summary_and_something_else(test_pairs):
    human = {pair.document: pair.summary for pair in test_pairs}
    for pair in constructed_pairs(test_pairs[:40], kinds=KINDS, seed=0):
        assert pair.chosen == human[pair.prompt] != pair.rejected
        assert pair.rejected.strip()


def test_constructed_pairs_are_spoilt_as_their_kind_says(test_pairs):
    summaries = {pair.summary for pair in test_pairs[:40]}
    for pair in constructed_pairs(test_pairs[:40], kinds=KINDS, seed=0):
        spoilt, good = words(pair.rejected), words(pair.chosen)
        if pair.kind in ("other", "nearest"):
            assert pair.rejected in summaries
        elif pair.kind == "truncated":
            assert pair.chosen.startswith(pair.rejected.rstrip(".")) and len(spoilt) < len(good)
        elif pair.kind in ("repeated", "overlong"):
            assert spoilt[: len(good) - 1] == good[: len(good) - 1] and len(spoilt) > len(good)
        elif pair.kind == "shuffled":
            assert sorted(pair.rejected.lower().rstrip(".").split()) == sorted(pair.chosen.lower().rstrip(".").split())
        elif pair.kind in ("sentence", "echo"):
            assert " ".join(spoilt[:3]) in " ".join(words(pair.prompt))


def test_constructed_pairs_of_a_single_document_leave_out_what_needs_others():
    pair = SummaryPair(document="numpy: sort(a)\nIt sorts. By size it does.", summary="Sort an array.", origin="x")
    kinds = {pair.kind for pair in constructed_pairs([pair], kinds=KINDS, seed=0)}
    assert not kinds & {"other", "nearest"} and {"echo", "truncated", "repeated"} <= kinds


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_longest_shared_run_is_that_of_all_runs(first, second):
    runs = [first[i:j] for i in range(len(first)) for j in range(i + 1, len(first) + 1)]
    shared = [run for run in runs if any(second[i : i + len(run)] == run for i in range(len(second)))]
    assert longest_shared_run(first, second) == max(map(len, shared), default=0)


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_model_has_held_out_accuracy_of_four_fifths_for_every_kind(name, test_pairs):
    pairs = constructed_pairs(test_pairs[:NUM_TEST_DOCUMENTS], kinds=KINDS, seed=HELD_OUT_SEED)
    reward = load_reward_model(name)
    prompts = [pair.prompt for pair in pairs]
    chosen, rejected = (
        reward.score(prompts, [getattr(pair, side) for pair in pairs]) for side in ("chosen", "rejected")
    )
    quality = Quality.of(pairs, np.array(chosen) - np.array(rejected))
    assert set(quality.kinds) == set(KINDS)
    # A sample: the interval must reach 0.8. What all test documents give stands in docs/reward-models.md.
    assert {kind: share for kind, share in quality.kinds.items() if share.high < 0.8} == {}
    assert quality.overall.low > 0.85
    # Scaled so that human summaries get about 1 and spoilt ones about -1.
    assert np.mean(chosen) == pytest.approx(1.0, abs=0.4) and np.mean(rejected) == pytest.approx(-1.0, abs=0.4)


# ---------------------------------------------------------------------------------------------------------------------
# Quality
# ---------------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_is_scipys(counts):
    successes, trials = counts
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    flags = [True] * successes + [False] * (trials - successes)
    assert share(flags).interval == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_quality_of_honest_margins_has_little_calibration_error_and_of_doubled_ones_more():
    generator = np.random.default_rng(0)
    margins = generator.normal(scale=2.0, size=20_000)
    margins = np.where(generator.random(len(margins)) < expit(margins), margins, -margins)
    pairs = [PreferencePair(prompt="", chosen="a", rejected="b", kind="k")] * len(margins)
    honest, boastful = Quality.of(pairs, margins), Quality.of(pairs, 3 * margins)
    assert honest.calibration_error < 0.02 < 0.05 < boastful.calibration_error
    assert honest.overall == boastful.overall and honest.log_loss < boastful.log_loss


def test_quality_counts_ties_as_wrong():
    pairs = [PreferencePair(prompt="", chosen="a", rejected="b", kind=kind) for kind in "xxyy"]
    quality = Quality.of(pairs, np.array([1.0, -1.0, 0.0, 2.0]))
    assert [quality.kinds[kind].accuracy for kind in "xy"] == [0.5, 0.5]


# ---------------------------------------------------------------------------------------------------------------------
# Data
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_comparisons_are_read_from_any_file_and_equal_ones_are_counted(tmp_path, ending):
    rows = [*comparison_rows(num_rows=3), {"prompt": "p", "chosen": "same", "rejected": "same"}]
    path = tmp_path / f"data{ending}"
    if ending == ".parquet":
        import pandas

        pandas.DataFrame(rows).to_parquet(path)
    else:
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    pairs, num_equal = read_comparisons(RewardDataSection(source=str(path), prompt_column="prompt"))
    assert num_equal == 1
    assert [(pair.prompt, pair.chosen, pair.rejected) for pair in pairs] == [tuple(row.values()) for row in rows[:3]]


@pytest.mark.parametrize(
    ("chosen", "rejected", "end", "prompt"),
    [
        ("H: hi\n\nA: I am", "H: hi\n\nA: I was", "\n\nA:", "H: hi\n\nA:"),
        ("H: hi\n\nA: yes", "H: hi\n\nA: you", None, "H: hi\n\nA: "),
        ("H: hi\n\nA: yes", "H: ho\n\nA: yes", "\n\nA:", "H: "),
        ("abc", "abd", None, ""),
        ("a b", "a b c", None, "a "),
        ("a\n\nA: b\n\nA: x", "a\n\nA: b\n\nA: y", "\n\nA:", "a\n\nA: b\n\nA:"),
    ],
)
def test_common_prompt_ends_where_it_is_said_to(chosen, rejected, end, prompt):
    assert common_prompt(chosen, rejected, end=end) == prompt


@settings(max_examples=50)
@given(st.text("ab \n"), st.text("ab \n"), st.text("ab \n"))
def test_common_prompt_is_the_beginning_of_both(start, one, other):
    prompt = common_prompt(start + one, start + other, end=None)
    assert (start + one).startswith(prompt) and (start + other).startswith(prompt)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([{"chosen": "a", "rejectd": "b"}], {}, r"no column 'rejected' \(did you mean 'rejectd'\?\)"),
        ([{"chosen": "a", "rejected": None}], {}, "row 1, rejected is null; it must be text"),
        ([{"chosen": "a", "rejected": "a"}], {}, "both completions are equal"),
        ([], {}, "holds no rows"),
        ([{"chosen": "a", "rejected": "b"}], {"prompt_column": "question"}, "no column 'question'"),
    ],
)
def test_bad_comparisons_are_refused(tmp_path, rows, columns, message):
    source = write_rows(tmp_path / "data.jsonl", rows)
    with pytest.raises(TaskError, match=message):
        read_comparisons(RewardDataSection(source=source, **columns))


@pytest.mark.parametrize("content", [b"{", b"[1]\n", b"\xff\xfe"])
def test_broken_files_are_refused(tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=r"data\.jsonl"):
        read_comparisons(RewardDataSection(source=str(path)))


def test_no_prompt_is_both_trained_on_and_held_out(tmp_path):
    rows = comparison_rows() + comparison_rows()
    found = load_comparisons(lexical_config(tmp_path, write_rows(tmp_path / "data.jsonl", rows)))
    train, held_out = ({pair.prompt for pair in part} for part in (found.train, found.held_out))
    assert train and held_out and not train & held_out
    assert len(found.train) + len(found.held_out) == len(rows)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kinds": ["truncate"]}, "did you mean 'truncated'"),
        ({"origins": ["nosuchpackage"]}, "begins with 'nosuchpackage'"),
        ({"origins": ["numpy.nosuchmodule"]}, "begins with 'numpy.nosuchmodule'"),
        ({"source": "construct"}, "did you mean 'constructed'"),
        ({"source": "/nowhere/x.jsonl"}, "no such file"),
        ({"options": {"documents": "docstring"}}, "docstrings"),
    ],
)
def test_wrong_data_settings_are_refused(tmp_path, data, message):
    with pytest.raises(ConfigError, match=message):
        load_comparisons(RewardConfig.model_validate({"name": "x", "runs_dir": tmp_path, "data": data}))


# ---------------------------------------------------------------------------------------------------------------------
# Training from end to end
# ---------------------------------------------------------------------------------------------------------------------


def test_training_is_bit_identical_for_a_seed_and_is_loaded_by_its_path(tmp_path):
    source = write_rows(tmp_path / "data.jsonl", comparison_rows())
    results = [
        train_reward(lexical_config(tmp_path / name, source, model={"kind": "lexical", "num_hidden": 4}))
        for name in "ab"
    ]
    for file in ("reward.json", "reward.safetensors", "metrics.json", "README.md", "calibration.png"):
        first, second = (result.directory / file for result in results)
        assert first.read_bytes() == second.read_bytes(), file
    reward = load_reward_model(str(results[0].directory))
    good, bad = reward.score(["numpy: sort(a)\nSorts."] * 2, ["Sort arrays along an axis.", "sort sort graphs and the"])
    assert good > bad
    assert results[0].held_out.overall.accuracy == 1.0


def test_encoder_head_trains_on_constructed_pairs(tmp_path, monkeypatch, test_pairs):
    monkeypatch.setattr(
        "tbactl_preference.reward_data.load_pairs",
        lambda options, *, split: test_pairs[:12] if split == "train" else test_pairs[12:18],
    )
    result = train_reward(RewardConfig.model_validate({"name": "m", "runs_dir": tmp_path, "threads": 1}))
    assert result.held_out.overall.accuracy > 0.7
    card = (result.directory / "README.md").read_text()
    assert "No person compared anything" in card and "| truncated |" in card and "95 % interval" in card


def classifier_config(tmp_path, start, rows, **training):
    return RewardConfig.model_validate(
        {
            "name": "model",
            "runs_dir": tmp_path,
            "data": {"source": write_rows(tmp_path / "data.jsonl", rows), "prompt_column": "prompt"},
            "model": {"kind": "classifier", "path": str(start)},
            "training": {"num_epochs": 1, "batch_pairs": 8, **training},
            "threads": 1,
        }
    )


def test_classifier_reads_no_more_of_a_text_after_loading_than_it_was_measured_on(tmp_path):
    start = build_classifier(tmp_path / "start")
    rows = [{"prompt": f"cats run {'the ' * (i % 5)}", "chosen": " a poem", "rejected": " dogs"} for i in range(30)]
    result = train_reward(classifier_config(tmp_path, start, rows, max_tokens=6))
    reward = load_reward_model(str(result.directory))
    assert len(reward.token_ids("cats " * 50, "dogs run")) == 6


def test_classifier_start_may_be_below_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    build_classifier(tmp_path / "start")
    rows = [{"prompt": f"cats {'the ' * (i % 5)}", "chosen": " a poem", "rejected": " dogs"} for i in range(30)]
    assert (train_reward(classifier_config(tmp_path, "~/start", rows)).directory / "config.json").is_file()


def test_classifier_start_that_lacks_a_layer_is_refused_and_one_without_pooler_and_head_is_not(tmp_path):
    start = build_classifier(tmp_path / "start", kind="bert")
    for part in ("pooler", "classifier"):  # as a language model
        remove_weights(start, part)
    rows = [{"prompt": f"cats {'the ' * (i % 5)}", "chosen": " a poem", "rejected": " dogs"} for i in range(30)]
    assert train_reward(classifier_config(tmp_path, start, rows)).held_out.overall.num_pairs
    remove_weights(start, "layer.1.")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"model\.path = .*start' is incomplete: it lacks the weights bert\."):
        train_reward(classifier_config(tmp_path / "other", start, rows))


def test_classifier_is_fine_tuned_and_loaded_by_its_path(tmp_path):
    start = build_classifier(tmp_path / "start", pad="eos")
    draw = random.Random(0)
    rows = [
        {"prompt": " ".join(draw.choices(WORDS[5:12], k=4)), "chosen": " cats", "rejected": " dogs"} for _ in range(60)
    ]
    config = RewardConfig.model_validate(
        {
            "name": "model",
            "runs_dir": tmp_path,
            "data": {"source": write_rows(tmp_path / "data.jsonl", rows), "prompt_column": "prompt"},
            "model": {"kind": "classifier", "path": start},
            "training": {"num_epochs": 10, "batch_pairs": 8, "micro_batch_pairs": 3, "learning_rate": 1e-2},
            "threads": 1,
        }
    )
    result = train_reward(config)
    assert result.held_out.overall.accuracy > 0.9
    reward = load_reward_model(str(result.directory))
    good, bad = reward.score(["run a poem"] * 2, [" cats", " dogs"])
    assert good > bad


def test_training_that_diverges_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    source = write_rows(tmp_path / "data.jsonl", comparison_rows())
    monkeypatch.setattr(
        "tbactl_preference.reward_training.TrainedHead.margins", lambda self, pairs: np.full(len(pairs), np.nan)
    )
    with pytest.raises(TaskError, match="not finite; it has diverged"):
        train_reward(lexical_config(tmp_path, source))
    assert not (tmp_path / "model").exists()


def test_output_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious").write_text("")
    source = write_rows(tmp_path / "data.jsonl", comparison_rows())
    with pytest.raises(ConfigError, match="is not empty"):
        train_reward(lexical_config(tmp_path, source))
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["precious"]


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command_trains_and_prints_the_accuracy(tmp_path, capsys):
    source = write_rows(tmp_path / "data.jsonl", comparison_rows())
    recipe = tmp_path / "my.toml"
    recipe.write_text(
        f'kind = "reward"\n[data]\nsource = "{source}"\nprompt_column = "prompt"\n[model]\nkind = "lexical"\n'
    )
    assert main(["reward", "train", str(recipe), "--output", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["held_out"]["kinds"]["all"]["accuracy"] == 1.0
    assert (tmp_path / "out" / "reward.safetensors").is_file()
    assert main(["reward", "train", str(recipe), "--output", str(tmp_path / "out")]) == 3
    assert "error: " in (message := capsys.readouterr().err) and str(tmp_path / "out") in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.kind=classifier"], "model.path is missing"),
        (["model.path=x"], "has no effect when model.kind = encoder"),
        (["data.chosen_column=rejected"], "must not be data.chosen_column"),
        (["data.held_out_fraction=1.0"], "data.held_out_fraction"),
        (["data.chosen_colum=x"], "did you mean"),
        (["data.source=a.jsonl"], "data.origins"),
        (["data.prompt_column=a", "data.prompt_end=b"], "data.prompt_end"),
        (['data.kinds=["oter"]'], "data.kinds: there is no 'oter' (did you mean 'other'?)"),
        (['data.origins=["nmpy"]'], "data.origins: no document's origin begins with 'nmpy' (did you mean 'numpy'?)"),
        (["data.options.documents=docstring"], "data.options.documents = 'docstring' is unknown (did you mean"),
        (["data.source=/nope.jsonl", "data.origins=[]"], "data.source = '/nope.jsonl': there is no such file"),
        (["data.source=construct", "data.origins=[]"], "data.source = 'construct' (did you mean 'constructed'?)"),
        (["model.kind=classifier", "model.path=./nope"], "model.path = './nope': there is no such directory"),
    ],
)
def test_command_wrong_settings_exit_with_the_config_code(overrides, message, capsys):
    arguments = [part for override in overrides for part in ("--set", override)]
    assert main(["reward", "train", "reward-tldr", "--dry-run", *arguments]) == 3
    assert message in " ".join(capsys.readouterr().err.split())


def test_command_dry_run_refuses_an_output_that_holds_something(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    arguments = ["reward", "train", "reward-tldr", "--dry-run", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--set", 'data.kinds=["oter"]']) == 3
    message = " ".join(capsys.readouterr().err.split())
    assert "out exists and is not empty" in message and "there is no 'oter'" in message


@pytest.mark.parametrize("origins", ['["numpy"]', '["numpy.linalg", "torch.nn"]', '["sc"]'])
def test_command_dry_run_takes_the_beginning_of_any_training_document(origins, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reward", "train", "reward-tldr", "--dry-run", "--set", f"data.origins={origins}"]) == 0


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["training.max_tokens=10"], ["training.max_tokens = 10 has no effect when model.kind = encoder"]),
        (["model.kind=classifier", "model.path=x/y"], ["model.l2 = 0.03 has no effect when model.kind = classifier"]),
        (
            ["model.kind=classifier", "model.path=x/y", "model.num_hidden=3"],
            ["model.num_hidden = 3", "model.l2 = 0.03"],
        ),
        (["model.num_hidden=3"], []),
    ],
)
def test_command_warns_of_settings_that_nothing_reads(overrides, warned, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [part for override in overrides for part in ("--set", override)]
    assert main(["reward", "train", "reward-tldr", "--dry-run", *arguments]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("warning: ") == len(warned)
    assert all(sentence in said for sentence in warned)


def test_command_prints_the_directory_that_it_writes_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["reward", "train", "reward-tldr", "--dry-run", "--set", "runs_dir=~/here"]) == 0
    assert f"output {tmp_path}/here/reward-tldr" in capsys.readouterr().out


def test_command_whose_child_writes_no_result_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tbactl.cli.commands.reward.run_child", lambda *_, **__: "hello")
    assert main(["reward", "train", "reward-tldr"]) == 5
    assert "wrote no result but 'hello'" in " ".join(capsys.readouterr().err.split())


def test_result_stands_alone_whatever_libraries_print(tmp_path):
    source = write_rows(tmp_path / "data.jsonl", comparison_rows())
    config = tmp_path / "config.json"
    config.write_text(lexical_config(tmp_path, source).model_dump_json())
    code = (
        "import os, sys, tbactl_preference.reward_train as child\n"
        "trained = child.train_reward\n"
        "def chatty(config):\n"
        "    print('chatter', flush=True)\n"
        "    os.write(1, b'more')\n"
        "    return trained(config)\n"
        "child.train_reward = chatty\n"
        "sys.exit(child.main(['--config', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(config)], capture_output=True, text=True, check=True, timeout=240
    )
    assert json.loads(done.stdout)["held_out"]["kinds"]
    assert "chatter" in done.stderr


@pytest.mark.parametrize("recipe", ["reward-tldr", "reward-tldr-gold"])
def test_command_dry_run_starts_nothing(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reward", "train", recipe, "--dry-run"]) == 0
    assert "nothing was started" in capsys.readouterr().out


def test_command_refuses_the_recipe_of_another_command_and_says_which(capsys):
    assert main(["reward", "train", "gsm8k"]) == 3
    assert "use `tbactl run gsm8k`" in capsys.readouterr().err
    assert main(["sft", "reward-tldr"]) == 3
    assert "use `tbactl reward train reward-tldr`" in capsys.readouterr().err
