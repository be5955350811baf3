"""Where a model of a hub would lie, as huggingface_hub looks for it."""

from __future__ import annotations

import pytest

from tbactl.config.hub import may_be_on_hub

VARIABLES = (
    "HF_HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variable", "value", "cache"),
    [
        (None, "", ".cache/huggingface/hub"),
        ("XDG_CACHE_HOME", "~/x", "x/huggingface/hub"),
        ("HF_HOME", "$HOME/h", "h/hub"),
        ("HUGGINGFACE_HUB_CACHE", "~/old", "old"),
        ("HF_HUB_CACHE", "~/c", "c"),
    ],
)
def test_model_offline_is_looked_for_in_the_cache(tmp_path, monkeypatch, variable, value, cache):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if variable is not None:
        monkeypatch.setenv(variable, value)
    assert not may_be_on_hub("org/model")
    (tmp_path / cache / "models--org--model").mkdir(parents=True)
    assert may_be_on_hub("org/model")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize(("value", "is_offline"), [("1", True), ("true", True), ("YES", True), ("0", False)])
def test_offline_is_what_the_hub_client_takes_for_it(monkeypatch, variable, value, is_offline):
    monkeypatch.setenv(variable, value)
    assert may_be_on_hub("org/model") != is_offline
