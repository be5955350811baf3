"""Memory by arithmetic, against numbers that others published."""

from __future__ import annotations

import json
import struct

import pytest

from tbactl.config.derived import shared_memory_bytes
from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError
from tbactl.planning.hardware import ModelSection
from tbactl.planning.memory import (
    GIB,
    MIB,
    kv_bytes_per_token,
    kv_cache_bytes,
    memory_of,
    memory_warnings,
    shared_memory_warnings,
    trainer_bytes,
)
from tbactl.planning.model_shape import model_shape
from tbactl.supervision.policy import published_bytes
from tests.support.planning import LARGE, run_config

GB = 1e9
STATES = ("weights", "gradients", "optimizer")
# The policy of the gsm8k recipe's profile for CPUs, and what of its settings decides about memory.
TINY = ModelSection(
    num_parameters=3_557_632,
    num_layers=4,
    hidden_size=256,
    num_key_value_heads=4,
    head_size=64,
    vocabulary_size=1536,
    tied_embeddings=True,
)
GSM8K = {
    "searchers__engine": "vllm",
    "searchers__num_completions": 8,
    "searchers__max_prompt_tokens": 200,
    "searchers__max_new_tokens": 160,
    "searchers__max_concurrent_groups": 16,
    "searchers__ring_capacity_bytes": 8_388_608,
    "trainer__kind": "deepspeed",
    "trainer__completions_per_prompt": 8,
    "trainer__micro_batch_tokens": 3072,
}


def states_gb(run: RunConfig) -> float:
    """What the ZeRO paper calls model states."""
    parts = trainer_bytes(run, model=LARGE)
    return sum(parts[name] for name in STATES) / GB


@pytest.mark.parametrize(("stage", "expected"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_are_those_of_the_zero_paper(stage, expected):
    # arXiv 1910.02054, figure 1: 7.5 B parameters, mixed precision, 64 devices.
    run = run_config(policy__dtype="bfloat16", trainer__num_ranks=64, trainer__zero_stage=stage)
    assert states_gb(run) == pytest.approx(expected, abs=0.06)


def test_float32_takes_sixteen_bytes_a_parameter_and_four_for_the_reference():
    parts = trainer_bytes(run_config(trainer__zero_stage=0), model=LARGE)
    assert sum(parts[name] for name in STATES) == 16 * LARGE.num_parameters
    assert parts["reference"] == 4 * LARGE.num_parameters


@pytest.mark.parametrize(("stage", "expected"), [(0, 8), (1, 12), (2, 12), (3, 8)])
def test_zero_1_and_2_copy_float32_weights_for_the_optimizer(stage, expected):
    # DeepSpeed, runtime/zero/stage_1_and_2.py: single_partition_of_fp32_groups is a clone whatever the dtype; stage3.py
    # takes the partition itself where it has the master weights' dtype.
    parts = trainer_bytes(run_config(trainer__zero_stage=stage), model=LARGE)
    assert parts["optimizer"] == expected * LARGE.num_parameters


def test_adapters_keep_one_model_and_little_else():
    parts = trainer_bytes(run_config(policy__dtype="bfloat16", policy__lora_rank=16), model=LARGE)
    assert parts["reference"] == 0.0
    assert parts["weights"] == pytest.approx(2 * LARGE.num_parameters, rel=0.01)
    assert parts["gradients"] + parts["optimizer"] < 0.04 * parts["weights"]


def test_kv_cache_of_a_token_is_that_of_llama_3_8b():
    # 32 layers, 8 heads of 128, keys and values, 2 bytes: 128 KiB.
    assert kv_bytes_per_token(run_config(policy__dtype="bfloat16"), LARGE) == 128 * 1024


def test_kv_cache_holds_a_prompt_once_for_its_group():
    run = run_config(searchers__max_prompt_tokens=100, searchers__max_new_tokens=50, searchers__num_completions=4)
    assert kv_cache_bytes(run, model=LARGE) == 4 * (100 + 4 * 50) * kv_bytes_per_token(run, LARGE)


def test_on_a_cpu_the_cache_is_what_vllm_is_given():
    memory = memory_of(run_config(**GSM8K), model=TINY, has_devices=False)
    # 16 groups of 8 and the 8 sequences of a probe, 200 + 160 tokens and one more.
    assert memory.searcher["KV cache"] == 136 * 361 * kv_bytes_per_token(run_config(), TINY)
    small = run_config(**GSM8K | {"searchers__max_concurrent_groups": 1})
    assert memory_of(small, model=TINY, has_devices=False).searcher["KV cache"] == 64 * MIB
    assert memory_of(run_config(**GSM8K), model=LARGE, has_devices=False).searcher["KV cache"] == 8 * GIB
    given = run_config(**GSM8K, searchers__engine_options={"kv_cache_bytes": 5 * MIB})
    assert memory_of(given, model=TINY, has_devices=False).searcher["KV cache"] == 5 * MIB


def test_processes_without_devices_come_to_the_measured_peaks():
    # docs/performance.md, which the libraries' share is taken from: no part is forgotten, or counted twice.
    memory = memory_of(run_config(**GSM8K), model=TINY, has_devices=False)
    assert memory.trainer_bytes == pytest.approx(1235 * MIB, rel=0.05)
    assert memory.searcher_bytes == pytest.approx(1601 * MIB, rel=0.05)


def test_eight_searchers_do_not_fit_into_eight_gibibytes():
    def sentences(num_searchers, **settings):
        run = run_config(**GSM8K, searchers__num_searchers=num_searchers, **settings)
        memory = memory_of(run, model=TINY, has_devices=False)
        return memory_warnings(run, memory=memory, limit_gib=8.0, shares_one=True)

    assert sentences(4) == []
    assert sentences(8) == ["13.8 GiB do not fit into the machine's 8 GiB."]
    # They are elsewhere.
    assert sentences(8, searchers__launcher="ray") == []
    assert len(sentences(100, searchers__launcher="ray")) == 1  # but not their bridges


def test_libraries_do_not_count_on_devices_and_hardly_for_fakes():
    assert "libraries" not in memory_of(run_config(**GSM8K), model=TINY).trainer
    assert memory_of(run_config(), model=TINY, has_devices=False).searcher["libraries"] < 100 * MIB
    other = run_config(searchers__engine="transformers")
    assert memory_of(other, model=TINY, has_devices=False).searcher["libraries"] > 500 * MIB


def test_log_prob_chunk_does_not_depend_on_the_batch():
    small, large = (
        trainer_bytes(run_config(trainer__prompts_per_step=prompts), model=LARGE)["log-prob chunk"]
        for prompts in (1, 64)
    )
    assert small == large == 1.5 * 4 * 512 * 32_000


def test_gradient_checkpointing_saves_activations():
    plain, saving = (
        trainer_bytes(run_config(trainer__gradient_checkpointing=on), model=LARGE)["activations"]
        for on in (False, True)
    )
    assert saving < plain / 10


def test_what_does_not_fit_is_named_with_what_to_do():
    run = run_config(policy__dtype="bfloat16")
    memory = memory_of(run, model=LARGE)
    (sentence, *_) = memory_warnings(run, memory=memory, limit_gib=80.0, shares_one=False)
    assert "trainer rank" in sentence and "80 GiB" in sentence and "trainer.zero_stage" in sentence
    assert memory_warnings(run, memory=memory, limit_gib=10_000.0, shares_one=False) == []
    assert memory_warnings(run, memory=memory, limit_gib=None, shares_one=False) == []


def test_searcher_that_is_too_large_says_whether_weights_or_cache_are():
    run = run_config(policy__dtype="bfloat16", searchers__max_concurrent_groups=512)
    memory = memory_of(run, model=LARGE)
    few = memory_warnings(run, memory=memory, limit_gib=10.0, shares_one=False)
    more = memory_warnings(run, memory=memory, limit_gib=20.0, shares_one=False)
    assert any("weights need 14.0 GiB" in sentence for sentence in few)
    assert any("searchers.max_concurrent_groups" in sentence for sentence in more)


def test_processes_of_one_machine_are_added_up():
    run = run_config(searchers__num_searchers=3)
    memory = memory_of(run, model=LARGE)
    total = memory.trainer_bytes + 3 * memory.searcher_bytes + memory.shared
    assert memory_warnings(run, memory=memory, limit_gib=total / GIB * 1.01, shares_one=True) == []
    assert len(memory_warnings(run, memory=memory, limit_gib=total / GIB * 0.99, shares_one=True)) == 1


def test_shared_memory_that_is_too_small_is_named():
    memory = memory_of(run_config(), model=LARGE)
    assert memory.shared > 3 * 4 * LARGE.num_parameters
    assert "/dev/shm" in shared_memory_warnings(memory, limit_gib=64.0)[0]
    assert shared_memory_warnings(memory, limit_gib=100.0) == []


def write_model(directory, settings):
    header = json.dumps({"a": {"shape": [10, 4]}, "b": {"shape": [7]}, "__metadata__": {}}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (directory / "config.json").write_text(json.dumps(settings))


def test_model_shape_counts_the_tensors(tmp_path):
    write_model(
        tmp_path,
        {
            "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": 10,
        },
    )  # fmt: skip
    shape = model_shape(tmp_path)
    assert shape is not None
    assert (shape.num_parameters, shape.num_layers, shape.num_key_value_heads, shape.head_size) == (47, 2, 2, 2)


def test_tied_head_is_published_beside_the_embedding(tmp_path):
    write_model(tmp_path, {"num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 2, "vocab_size": 10})
    tied, run = model_shape(tmp_path), run_config()
    assert tied is not None and tied.tied_embeddings
    published = published_bytes(run.policy, directory=tmp_path)
    assert memory_of(run, model=tied).shared == shared_memory_bytes(run, policy_bytes=published)
    assert published == 4 * (47 + 40)


def test_model_shape_knows_the_names_of_gpt2(tmp_path):
    write_model(tmp_path, {"n_layer": 3, "n_embd": 12, "n_head": 3, "vocab_size": 10})
    shape = model_shape(tmp_path)
    assert shape is not None
    assert (shape.num_layers, shape.hidden_size, shape.num_key_value_heads, shape.head_size) == (3, 12, 3, 4)


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_model_shape_of_something_else_is_unknown(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert model_shape(tmp_path) is None


@pytest.mark.parametrize("data", [b"", (100).to_bytes(8, "little") + b"{", (2).to_bytes(8, "little") + b"[]"])
def test_weights_that_are_cut_off_are_an_error_not_a_traceback(tmp_path, data):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a safetensors file"):
        model_shape(tmp_path)
