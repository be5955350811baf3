import json

from tbactl.cli.main import main
from tbactl.config.recipes import shipped_recipes


def test_recipes_list_names_every_recipe_with_kind_and_description(capsys):
    assert main(["recipes", "list", "--json"]) == 0
    recipes = json.loads(capsys.readouterr().out)
    assert [recipe["name"] for recipe in recipes] == list(shipped_recipes())
    assert all(recipe["description"] for recipe in recipes)
    assert main(["recipes", "list"]) == 0
    assert "tbactl run smoke" in capsys.readouterr().out


def test_recipes_show_prints_the_file(capsys):
    assert main(["recipes", "show", "smoke"]) == 0
    assert capsys.readouterr().out.rstrip() == shipped_recipes()["smoke"].read_text().rstrip()
    assert main(["recipes", "show", "smoke", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "smoke"


def test_recipes_show_of_an_unknown_recipe_exits_3(capsys):
    assert main(["recipes", "show", "smok"]) == 3
    assert "did you mean 'smoke'?" in capsys.readouterr().err
