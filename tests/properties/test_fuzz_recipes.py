"""Whatever a recipe or an override says: a configuration, or a ConfigError; never another exception, never a hang."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tbactl.cli.plan import plan_lines
from tbactl.config.loading import load_recipe
from tbactl.config.packages import missing_packages
from tbactl.config.recipes import shipped_recipes
from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError
from tests.support.corpus import as_text, corpus_first
from tests.support.recipes import BASE

MORE = """
seed = 3
description = "one\\ttwo"
[profiles.cpu.trainer]
max_steps = 3
[objective]
beta = 0.05
options = {log_z = "vargrad"}
[replay]
"sampler" = 'uniform'
"""
WORDS = st.sampled_from(
    ["task", "policy", "trainer", "max_steps", "kind", "path", "options", "extends", "profiles", "cpu", "stages", "a"]
)
VALUES = st.recursive(
    st.sampled_from(
        ["0", "-1", "1e999", "nan", "true", '"fake"', "'none'", "2026-01-01", "07:30:00", '"""\na\n"""', "9" * 30, "[]"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=3).map(lambda items: "[\n" + ",  # more\n".join(items) + "\n]"),
        st.tuples(WORDS, inner).map(lambda item: f"{{{item[0]} = {item[1]}}}"),
    ),
    max_leaves=4,
)
KEYS = st.lists(st.one_of(WORDS, WORDS.map(lambda word: f'"{word}.{word}"'), st.just('""')), min_size=1, max_size=3)
LINES = st.one_of(
    st.tuples(KEYS, VALUES).map(lambda item: f"{'.'.join(item[0])} = {item[1]}"),
    KEYS.map(lambda parts: f"[{'.'.join(parts)}]  # [x]"),
    KEYS.map(lambda parts: f"[[ {' . '.join(parts)} ]]"),
    st.sampled_from(["# a comment = 1", "", "\ufeff", "x = '''\n[y]\n'''"]),
)
WRITTEN = st.lists(LINES, max_size=6).map("\n".join)


def spliced(recipe: str, start: int, length: int, text: str) -> str:
    position = start % (len(recipe) + 1)
    return recipe[:position] + text + recipe[position + length :]


RECIPES = st.builds(
    spliced,
    st.sampled_from([BASE, BASE + MORE, *(path.read_text() for path in shipped_recipes().values())]),
    st.integers(0),
    st.integers(0, 40),
    st.one_of(st.text(max_size=20), WRITTEN),
)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "fuzzed.toml"


@corpus_first("recipes")
@given(content=st.one_of(st.binary(max_size=100), RECIPES.map(lambda text: text.encode("utf-8", "surrogatepass"))))
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_any_recipe_is_a_configuration_or_a_config_error(recipe_file: Path, content: bytes):
    recipe_file.write_bytes(content)
    check(str(recipe_file), overrides=[])


@corpus_first("overrides", as_text)
@given(text=st.one_of(st.text(max_size=30), st.tuples(KEYS, VALUES).map(lambda i: f"{'.'.join(i[0])}={i[1]}")))
@settings(max_examples=80)
def test_any_override_gives_a_configuration_or_a_config_error(recipe_file: Path, text: str):
    recipe_file.write_text(BASE)
    check(str(recipe_file), overrides=[text])


def check(recipe: str, *, overrides: list[str]) -> None:
    try:
        loaded = load_recipe(recipe, overrides=overrides, profile="cpu")
    except ConfigError as error:
        assert error.problems and all(problem.strip() for problem in error.problems)
        return
    config = loaded.config
    assert type(config).model_validate_json(config.model_dump_json()) == config
    if isinstance(config, RunConfig):
        assert all(list(plan_lines(config)))
        missing_packages(config)
