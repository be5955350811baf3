import json

from tbactl.cli.output import PIPED_WIDTH, plain, print_json, print_table


def test_plain_drops_what_could_command_a_terminal():
    assert plain("a\x1b[31mb\x07c\u202ed\te\nf") == "a[31mbcd    e f"
    assert plain("a\nb\x1b", keep_lines=True) == "a\nb"


def test_print_table_shows_markup_as_text_and_does_not_wrap_in_a_pipe(capsys):
    print_table(("one", "two"), [("[red]x[/red]", "y" * 100), ("[/]", 3)], title="title")
    out = capsys.readouterr().out
    assert "[red]x[/red]" in out
    assert "y" * 100 in out
    assert "[/]" in out
    assert max(map(len, out.splitlines())) <= PIPED_WIDTH


def test_print_json_is_one_document(capsys):
    print_json({"a": [1, "\x1b"]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, "\x1b"]}
