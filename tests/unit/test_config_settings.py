from tbactl.config.settings import Settings


def merged(*tables):
    settings = Settings()
    for number, table in enumerate(tables):
        settings.merge(table, file=f"file{number}", lines={("a", "x"): number + 1})
    return settings


def test_merge_of_tables_is_deep_and_later_wins():
    settings = merged({"a": {"x": 1, "y": 2}}, {"a": {"x": 3, "z": {"w": 4}}})
    assert settings.values == {"a": {"x": 3, "y": 2, "z": {"w": 4}}}
    assert settings.origin(("a", "x")) == "file1:2"


def test_merge_of_an_empty_table_keeps_what_is_there():
    assert merged({"a": {"x": 1}}, {"a": {}}).values == {"a": {"x": 1}}


def test_merge_of_an_array_replaces_it_whole():
    assert merged({"a": {"x": [1, 2]}}, {"a": {"x": [3]}}).values == {"a": {"x": [3]}}


def test_assign_of_an_empty_table_replaces_it():
    settings = merged({"a": {"x": 1}})
    settings.assign(("a",), {}, origin="--set")
    assert settings.values == {"a": {}}
    assert settings.origin(("a", "x")) == "--set"


def test_assign_below_a_value_replaces_the_value_by_a_table():
    settings = merged({"a": 1})
    settings.assign(("a", "b"), 2, origin="--set")
    assert settings.values == {"a": {"b": 2}}


def test_origin_of_an_element_is_that_of_its_array():
    assert merged({"a": {"x": [1, 2]}}).origin(("a", "x", 1)) == "file0:1"


def test_origin_of_a_default_is_empty():
    assert merged({"a": {"x": 1}}).origin(("b", "y")) == ""


def test_get_through_something_that_is_no_table_is_none():
    assert merged({"a": {"x": 1}}).get(("a", "x", "deeper")) is None


def test_merge_leaves_the_given_tables_alone():
    table = {"a": {"x": 1}}
    merged(table, {"a": {"x": 2}})
    assert table == {"a": {"x": 1}}
