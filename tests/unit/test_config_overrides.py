import pytest

from tbactl.config.overrides import apply_overrides, parse_override
from tbactl.config.settings import Settings
from tbactl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("trainer.max_steps=20", ("trainer", "max_steps"), 20),
        ("a.b=1e-5", ("a", "b"), 1e-5),
        ("a.b=1_000", ("a", "b"), 1000),
        ("a.b=true", ("a", "b"), True),
        ("a.b=True", ("a", "b"), "True"),
        ("a.b=[1, 2]", ("a", "b"), [1, 2]),
        ("a.b={c = 1}", ("a", "b"), {"c": 1}),
        ('a.b="7"', ("a", "b"), "7"),
        ("a.b=some/model", ("a", "b"), "some/model"),
        ("a.b=x=y", ("a", "b"), "x=y"),
        ("a.b=", ("a", "b"), ""),
        ("a.b=none", ("a", "b"), None),
        ('a.b="none"', ("a", "b"), "none"),
        ("name=2026-01-02", ("name",), "2026-01-02"),
        ("a = 5", ("a",), 5),
        ("a.b=1\nc = 2", ("a", "b"), "1\nc = 2"),
    ],
)
def test_parse_override_reads_a_toml_value_or_a_string(text, path, value):
    assert parse_override(text) == (path, value)


@pytest.mark.parametrize("text", ["", "trainer.max_steps", "=3", "a..b=3", ".a=3"])
def test_parse_override_without_key_or_value_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=r"--set trainer\.max_steps=20"):
        parse_override(text)


def test_apply_overrides_later_wins_and_all_problems_are_returned():
    settings = Settings()
    problems = apply_overrides(settings, ["a.b=1", "oops", "a.b=2", "=3"])
    assert settings.values == {"a": {"b": 2}}
    assert len(problems) == 2
