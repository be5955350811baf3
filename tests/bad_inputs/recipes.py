"""Recipes: files that are no recipe, TOML that is none, settings that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

from tests.bad_inputs.case import CAPACITY, CONFIG, TASK, Case, case
from tests.bad_inputs.running import OK_RECIPE

RUN = "run r.toml --dry-run"
SFT = """
kind = "sft"

[task]
kind = "math"

[[stages]]
name = "one"
mixture = {worked = 1.0}
num_tokens = 1000
learning_rate = 1e-3
"""
REWARD = """
kind = "reward"

[data]
source = "pairs.jsonl"
"""


def recipe(name: str, text: str | bytes, *says: str, exit_code: int = CONFIG, command: str = RUN) -> Case:
    """A case whose recipe `r.toml` is wrong."""
    return case(name, command, exit_code, *says, files={"r.toml": text})


def changed(name: str, old: str, new: str, *says: str) -> Case:
    """A case whose recipe is a good one with one line changed."""
    assert old in OK_RECIPE
    return recipe(name, OK_RECIPE.replace(old, new), "r.toml:", *says)


def added(name: str, text: str, *says: str) -> Case:
    """A case whose recipe is a good one with something added in front."""
    return recipe(name, text + OK_RECIPE, *says)


def _no_device(directory: Path) -> None:
    os.mkfifo(directory / "r.toml")


FILES = [
    case("recipe-missing", "run nowhere.toml", CONFIG, "recipe file 'nowhere.toml' does not exist", "gsm8k"),
    case("recipe-misspelt", "run gms8k", CONFIG, "there is no recipe 'gms8k'", "did you mean 'gsm8k'"),
    case("recipe-empty-name", "run ''", CONFIG, "there is no recipe ''"),
    case("recipe-name-with-newline", "run 'a\nb'", CONFIG, "there is no recipe"),
    case("recipe-name-of-5000-letters", f"run {'x' * 5000}", CONFIG, "File name too long", "characters"),
    case("recipe-name-with-escape", "run 'a\x1b[2Jb'", CONFIG, "there is no recipe"),
    case("recipe-is-directory", "run .", CONFIG, "recipe '.' is a directory", "TOML file"),
    case("recipe-is-device", "run /dev/null", CONFIG, "not a regular file"),
    case("recipe-is-fifo", RUN, CONFIG, "not a regular file", prepare=_no_device),
    case("recipe-is-own-process", "run /proc/self/mem", CONFIG, "/proc/self/mem", "cannot be read"),
    case("recipe-link-to-itself", RUN, CONFIG, "r.toml", prepare=lambda d: (d / "r.toml").symlink_to("r.toml")),
    case("recipe-is-checkpoint", "run runs/r/run.json --dry-run", CONFIG, "not valid TOML", has_run=True),
    recipe("recipe-empty", "", "task is missing", "policy is missing"),
    recipe("recipe-blank", "\n\n   \n", "task is missing"),
    recipe("recipe-only-comment", "# nothing\n", "task is missing"),
    recipe("recipe-binary", bytes(range(256)), "r.toml", "not UTF-8"),
    recipe("recipe-nul-bytes", b"\0" * 100, "r.toml:1:1", "not valid TOML"),
    recipe("recipe-latin-1", OK_RECIPE.encode() + "# M\xfcller".encode("latin-1"), "not UTF-8", "byte"),
    recipe("recipe-utf-16", OK_RECIPE.encode("utf-16"), "not UTF-8"),
    recipe("recipe-json", '{"task": {"kind": "fake"}}', "r.toml:1:1", "not valid TOML"),
    recipe("recipe-yaml", "task:\n  kind: fake\n", "r.toml:1", "not valid TOML"),
    recipe("recipe-pickle", b"\x80\x04\x95\x0b\x00\x00\x00", "not UTF-8"),
    recipe("recipe-line-of-20-mb", "x = '" + "a" * 20_000_000, "r.toml", "not valid TOML", "end of document"),
    recipe("recipe-key-of-1-mb", "a" * 1_000_000 + " = 1\n" + OK_RECIPE, "there is no such setting"),
    recipe("recipe-nested-too-deeply", "x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    recipe("recipe-dotted-too-deeply", ".".join("a" * 3000) + " = 1", "r.toml"),
    recipe("recipe-unclosed-string", '[task]\nkind = "fake\n', "r.toml:2", "not valid TOML"),
    recipe("recipe-duplicate-key", "[task]\nkind = 'fake'\nkind = 'math'\n", "r.toml:3", "not valid TOML"),
    recipe("recipe-duplicate-table", "[task]\nkind = 'fake'\n[task]\n", "r.toml:3", "not valid TOML"),
]
SETTINGS = [
    added("setting-unknown-at-top", "max_steps = 3\n", "r.toml:1", "did you mean 'trainer.max_steps'"),
    changed("setting-misspelt", "max_steps", "max_step", "did you mean 'trainer.max_steps'"),
    changed("setting-in-capitals", "max_steps", "MAX_STEPS", "did you mean 'trainer.max_steps'"),
    changed("setting-with-hyphen", "max_steps", "max-steps", "did you mean 'trainer.max_steps'"),
    changed(
        "setting-with-cyrillic-letter",
        "max_steps",
        '"m\u0430x_steps"',
        "m\\u0430x_steps",
        "did you mean 'trainer.max_steps'",
    ),
    changed(
        "setting-with-zero-width-space",
        "max_steps",
        '"max\u200b_steps"',
        "max\\u200b_steps",
        "did you mean 'trainer.max_steps'",
    ),
    changed("setting-empty-key", "max_steps", '""', "there is no such setting"),
    changed("section-misspelt", "[trainer]", "[trainner]", "did you mean 'trainer'"),
    changed("section-is-array-of-tables", "[trainer]", "[[trainer]]", "trainer", "must be a table"),
    changed("section-is-number", '[task]\nkind = "fake"', "task = 3", "task = 3: must be a table"),
    changed("kind-missing", 'kind = "fake"\n\n[policy]', "\n[policy]", "task.kind is missing"),
    changed("number-is-text", "max_steps = 4", 'max_steps = "4"', 'trainer.max_steps = "4": must be an integer'),
    changed("number-is-bool", "max_steps = 4", "max_steps = true", "trainer.max_steps = true: must be an integer"),
    changed("number-is-float", "max_steps = 4", "max_steps = 4.5", "trainer.max_steps = 4.5: must be an integer"),
    changed("number-is-zero", "max_steps = 4", "max_steps = 0", "trainer.max_steps = 0: must be at least 1"),
    changed("number-is-negative", "max_steps = 4", "max_steps = -4", "trainer.max_steps = -4: must be at least 1"),
    changed("number-is-nan", "max_steps = 4", "max_steps = nan", "trainer.max_steps", "must be an integer"),
    changed("number-is-infinite", "max_steps = 4", "max_steps = inf", "trainer.max_steps", "must be an integer"),
    changed("number-is-1e999", "max_steps = 4", "learning_rate = 1e999", "trainer.learning_rate", "finite"),
    changed("number-of-5000-digits", "max_steps = 4", f"max_steps = {'9' * 5000}", "5000 digits"),
    changed("number-beyond-64-bits", "max_steps = 4", "max_steps = 99999999999999999999", "trainer.max_steps"),
    changed("number-is-date", "max_steps = 4", "max_steps = 2026-01-01", "trainer.max_steps", "must be an integer"),
    changed("number-is-array", "max_steps = 4", "max_steps = [4]", "trainer.max_steps = [4]: must be an integer"),
    changed("number-is-table", "max_steps = 4", "max_steps = {a = 4}", "trainer.max_steps", "must be an integer"),
    changed("text-is-number", 'path = "some/policy"', "path = 7", "policy.path = 7: must be a string"),
    changed("text-is-empty", 'path = "some/policy"', 'path = ""', "policy.path"),
    changed("bool-is-text", "tensorboard = false", 'tensorboard = "no"', "must be true or false"),
    changed("bool-is-number", "tensorboard = false", "tensorboard = 0", "must be true or false"),
    changed("task-misspelt", 'kind = "fake"\n\n[policy]', 'kind = "fakes"\n\n[policy]', "did you mean 'fake'"),
    changed("task-is-path", 'kind = "fake"\n\n[policy]', 'kind = "../../etc"\n\n[policy]', "unknown task '../../etc'"),
    changed("engine-misspelt", 'engine = "fake"', 'engine = "vlm"', "unknown engine 'vlm'", "did you mean 'vllm'"),
    changed("objective-unknown", "[replay]", '[objective]\nkind = "dpo"\n\n[replay]', "unknown objective 'dpo'"),
    changed("sampler-unknown", "[replay]", '[replay]\nsampler = "priority"', "unknown sampler 'priority'"),
    changed("policy-directory-missing", "some/policy", "./nowhere", "policy.path = './nowhere'", "no such directory"),
    changed("policy-package-unknown", "some/policy", "package:gpt-9", "package:gpt-9", "known:"),
    changed("policy-of-task-that-ships-none", "some/policy", "task:small", "the task 'fake' ships no policy"),
    changed("capacity-too-small", "initial_trajectories = 8", "initial_trajectories = 8\ncapacity = 2", "capacity"),
    changed("ring-too-small", "num_completions = 4", "num_completions = 4\nring_capacity_bytes = 10", "ring_capacity"),
    changed("searchers-beyond-reason", "num_completions = 4", "num_searchers = 100000", "num_searchers", "1024"),
    added("name-is-path", 'name = "../../tmp/x"\n', "name", "../../tmp/x", "must be 1 to 64 letters, digits"),
    added("name-is-absolute", 'name = "/etc/passwd"\n', "name", "/etc/passwd", "must be 1 to 64 letters, digits"),
    added("name-of-65-letters", f'name = "{"n" * 65}"\n', "name", "must be 1 to 64 letters, digits"),
    added("name-with-escape", 'name = "a\\u001b[2Jb"\n', "name", "must be 1 to 64 letters, digits"),
    added("seed-negative", "seed = -1\n", "seed = -1: must be at least 0"),
    added("seed-beyond-32-bits", "seed = 4294967296\n", "seed = 4294967296: must be less than 2147483648"),
    added("mode-unknown", 'mode = "asynchronous"\n', "mode", "'async' or 'sync'"),
    added("kind-of-recipe-unknown", 'kind = "train"\n', 'kind = "train" must be one of run, sft, reward'),
    added("extends-missing-file", 'extends = "base.toml"\n', "r.toml:1", "there is no file base.toml"),
    added("extends-itself", 'extends = "r.toml"\n', "in a circle", "r.toml -> r.toml"),
    added("extends-directory", 'extends = "."\n', "extends"),
    added("extends-number", "extends = 3\n", "extends must be one file name"),
    added("extends-device", 'extends = "/dev/zero"\n', "/dev/zero"),
    added("extends-parent-secrets", 'extends = "../../../../../../../../etc/passwd"\n', "/etc/passwd"),
    added("profile-unknown", "[profiles.tpu.trainer]\nmax_steps = 1\n", "there is no such profile", "cpu, gpu"),
    added("profiles-number", "profiles = 3\n", "profiles must be tables"),
    added("profile-number", "[profiles]\ncpu = 3\n", "profiles.cpu must hold tables"),
    case("two-mistakes-at-once", RUN, CONFIG, "2 problems", files={"r.toml": OK_RECIPE.replace("4", "-4", 2)}),
    case("recipe-mistake-as-json", f"{RUN} --json", CONFIG, "task is missing", files={"r.toml": ""}),
    case("runs-dir-is-file", "run ok.toml --dry-run --set runs_dir=f", CONFIG, "runs_dir = 'f'", files={"f": ""}),
    case("runs-dir-below-file", "run ok.toml --dry-run --set runs_dir=f/g", CONFIG, "runs_dir", files={"f": ""}),
    case("runs-dir-of-system", "run ok.toml --dry-run --set runs_dir=/proc/x", CONFIG, "runs_dir = '/proc/x'"),
    case("runs-dir-of-unknown-user", "run ok.toml --dry-run --set runs_dir=~nobody-here/x", CONFIG, "~nobody-here"),
    case("runs-dir-name-too-long", f"run ok.toml --dry-run --set runs_dir={'d' * 300}", CONFIG, "too long"),
    case(
        "rings-beyond-shared-memory",
        "run ok.toml --set searchers.num_searchers=1000 --set searchers.ring_capacity_bytes=1000000000000",
        CAPACITY,
        "/dev/shm",
        may_write=("runs",),
    ),
]
OTHER_COMMANDS = [
    case("sft-of-run-recipe", "sft ok.toml", CONFIG, "recipe for reinforcement learning", "tbactl run ok"),
    case("run-of-sft-recipe", "run r.toml", CONFIG, "tbactl sft r", files={"r.toml": SFT}),
    case("reward-of-run-recipe", "reward train ok.toml", CONFIG, "tbactl run ok"),
    recipe("sft-without-stages", SFT.split("[[")[0], "stages is missing", command="sft r.toml"),
    recipe("sft-empty-stages", "stages = []\n" + SFT.split("[[")[0], "at least 1", command="sft r.toml"),
    recipe("sft-share-beyond-one", SFT.replace("1.0", "1.5"), "must be at most 1", command="sft r.toml"),
    case(
        "sft-kind-of-example-unknown",
        "sft r.toml",
        TASK,
        '"workd"',
        "it offers worked, bare",
        files={"r.toml": SFT.replace("worked", "workd")},
        may_write=("runs",),
    ),
    recipe(
        "sft-schedule-option-of-another-type",
        SFT + "lr_schedule_options = { num_cycles = 'two' }\n",
        'stages.0.lr_schedule_options.num_cycles = "two": must be a number',
        command="sft r.toml",
    ),
    recipe("sft-schedule-unknown", SFT + 'lr_schedule = "cosinus"\n', "cosinus", command="sft r.toml"),
    case(
        "sft-of-task-without-examples",
        "sft r.toml",
        TASK,
        "'fake' has no examples",
        files={"r.toml": SFT.replace('"math"', '"fake"')},
        may_write=("runs",),
    ),
    case(
        "reward-without-file",
        "reward train r.toml",
        CONFIG,
        "pairs.jsonl",
        "no such file",
        files={"r.toml": REWARD},
        may_write=("runs",),
    ),
    recipe("reward-fraction-of-one", REWARD + "held_out_fraction = 1\n", "must be less", command="reward train r.toml"),
    case("recipes-show-unknown", "recipes show gms8k", CONFIG, "did you mean 'gsm8k'"),
    case("recipes-show-directory", "recipes show .", CONFIG, "is a directory"),
    case("recipes-show-binary", "recipes show r.toml", CONFIG, "r.toml", "UTF-8", files={"r.toml": b"\xff\xfe"}),
]
CASES = [*FILES, *SETTINGS, *OTHER_COMMANDS]
