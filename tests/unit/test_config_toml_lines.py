import tomllib

from tbactl.config.toml_lines import key_lines

TEXT = '''# comment
top = 1

[trainer]   # after
"max steps" = 3
betas = [
    0.9,  # [not.a.header]
    0.99,
]
options = { a = 1, b = { c = 2 } }
text = """
fake = 1
[fake]
"""
dotted.key = 5

[[stages]]
name = "a"
[[stages]]
name = "b"
[stages.inner]
x = 1
'''


def test_key_lines_names_every_key_with_its_line():
    lines = key_lines(TEXT)
    assert lines[("top",)] == 2
    assert lines[("trainer",)] == 4
    assert lines[("trainer", "max steps")] == 5
    assert lines[("trainer", "betas")] == 6
    assert lines[("trainer", "options", "b", "c")] == 10
    assert lines[("trainer", "dotted", "key")] == 15
    assert lines[("stages", 0, "name")] == 18
    assert lines[("stages", 1, "name")] == 20
    assert lines[("stages", 1, "inner", "x")] == 22
    assert not any("fake" in path for path in lines)


def test_key_lines_of_implied_parent_table_is_the_header_line():
    assert key_lines("\n[profiles.cpu.trainer]\n")[("profiles", "cpu")] == 2


def test_key_lines_covers_all_leaves_of_the_parsed_text():
    def leaves(value, prefix=()):
        if isinstance(value, dict):
            return [leaf for name, inner in value.items() for leaf in leaves(inner, (*prefix, name))]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return [leaf for i, inner in enumerate(value) for leaf in leaves(inner, (*prefix, i))]
        return [prefix]

    assert set(leaves(tomllib.loads(TEXT))) <= set(key_lines(TEXT))
