from __future__ import annotations

import copy
import errno
import json
import logging
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tbactl.adapters import Adapter
from tbactl.clock import FakeClock
from tbactl.config import rules
from tbactl.config.sections import PolicySection, RunConfig
from tbactl.errors import CapacityError, ChildFailedError, ConfigError
from tbactl.protocols import ProbeBatch
from tbactl.trainer.collate import collate
from tbactl.trainer.lora import LoraAdapters, base_sources, target_layers
from tbactl.trainer.policy import load_policy
from tbactl.trainer.reference import ReferenceScorer
from tbactl.trainer.scoring import ScoringModel
from tbactl.weight_sync import adapter_file, subscriber
from tbactl.weight_sync.adapter_description import read_description
from tbactl.weight_sync.adapter_file import BaseWeights, merged_file, write_adapters
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.published import weights_path
from tbactl.weight_sync.publisher import publish
from tbactl.weight_sync.subscriber import Subscriber
from tbactl.weight_sync.weights_file import mapped_weights, shapes_of, write_safetensors
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_groups

ARCHITECTURES = ("llama", "gpt2", "gpt_neox", "qwen2")
IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])


@pytest.fixture(scope="module", params=ARCHITECTURES)
def directory(request, tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / request.param, architecture=request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama")


def adapted(directory, *, dtype="float32", rank=4, targets=("all-linear",), trained=True, seed=0):
    """A policy's model, its parameters by name, and its adapters; with B away from zero when trained."""
    section = PolicySection(
        path=str(directory), dtype=dtype, lora_rank=rank, lora_alpha=6.0, lora_target_modules=targets
    )
    model = load_policy(section, directory=directory).model
    names = dict(model.state_dict(keep_vars=True))
    torch.manual_seed(seed)
    adapters = LoraAdapters(model, section, base=directory)
    if trained:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0.0, 0.1)
    return model, names, adapters


def collected(names, adapters):
    found = {name: adapters.adapter(tensor) for name, tensor in names.items()}
    return {name: adapter for name, adapter in found.items() if adapter is not None}


def merged(names, adapters):
    parts = collected(names, adapters)
    return {
        name: parts[name].merged_into(tensor.detach()) if name in parts else tensor.detach().clone()
        for name, tensor in names.items()
    }


def base_model(directory, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


# In the model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_untrained_adapters_leave_the_policy_exactly_as_it_is(directory, dtype):
    model, _, _ = adapted(directory, dtype=dtype, trained=False)
    assert torch.equal(logits(model), logits(base_model(directory, getattr(torch, dtype))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_switched_off_the_model_is_the_base_exactly(directory, dtype):
    model, _, adapters = adapted(directory, dtype=dtype)
    expected = logits(base_model(directory, getattr(torch, dtype)))
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    with_adapters = logits(model)
    assert not torch.equal(with_adapters, expected)
    with adapters.off():
        assert torch.equal(logits(model), expected)
        assert trainable == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert torch.equal(logits(model), with_adapters)


def test_switched_on_again_after_an_error(llama):
    model, _, adapters = adapted(llama)
    before = logits(model)
    with pytest.raises(RuntimeError), adapters.off():
        raise RuntimeError
    assert torch.equal(logits(model), before)


def test_only_adapters_are_trained_and_embedding_and_head_get_no_gradients(directory):
    model, names, _ = adapted(directory)
    scoring = ScoringModel(model, temperature=0.7, chunk_tokens=64)
    scoring(collate(make_groups(2), shares_prompt=True)).sum().backward()
    graded = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert graded == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(".lora_A." in name or ".lora_B." in name for name in graded)
    assert all(tensor.grad is None for tensor in names.values())


def test_gradients_equal_those_of_plain_peft(directory):
    model, _, _ = adapted(directory)
    plain = get_peft_model(
        base_model(directory),
        LoraConfig(
            r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", fan_in_fan_out=is_gpt2(model)
        ),
    )
    ours = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    theirs = {
        name.removeprefix("base_model.model."): parameter
        for name, parameter in plain.named_parameters()
        if parameter.requires_grad
    }
    assert ours.keys() == theirs.keys()
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(ours[name])
    batch = collate(make_groups(3), shares_prompt=False)
    model.double()
    plain.double()
    scoring = ScoringModel(model, temperature=0.7, chunk_tokens=4096)
    scoring(batch)[batch.completion_mask].square().mean().backward()
    of_all = plain.eval()(input_ids=batch.rows.input_ids, use_cache=False).logits.flatten(0, 1)
    picked = (of_all / 0.7).log_softmax(-1)[batch.source].gather(-1, batch.target_ids[..., None]).squeeze(-1)
    picked[batch.completion_mask].square().mean().backward()
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=1e-6, rtol=1e-6, msg=name)


def is_gpt2(model):
    return model.config.model_type == "gpt2"


def test_number_of_trained_parameters_is_rank_times_both_sides(llama):
    model, names, adapters = adapted(llama, rank=3)
    expected = sum(3 * sum(names[name].shape) for name in collected(names, adapters))
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == expected


# The reference under ZeRO-3 ------------------------------------------------------------------------------------------


def test_ranks_score_the_reference_together_where_a_forward_pass_takes_all_of_them():
    """Rank 0 has a new trajectory, then none; the other rank always has one."""
    others, calls = [], []

    def any_rank(wish):
        others.append(wish)
        return True

    def score(batch):
        calls.append(batch.uids)
        return torch.zeros(batch.completion_mask.shape)

    reference = ReferenceScorer(score, capacity=10, shares_prompt=False, any_rank=any_rank)
    (group,) = make_groups(1)
    batch = collate([group], shares_prompt=False)
    for _ in range(2):
        reference.logprobs([group], batch, device=torch.device("cpu"))
    reference.accompany(device=torch.device("cpu"))
    assert others == [True, False, False]
    assert [len(uids) for uids in calls] == [3, 1, 1]
    assert -1 not in reference


def test_ranks_do_nothing_for_each_other_where_each_has_whole_weights():
    reference = ReferenceScorer(lambda batch: pytest.fail("nothing to compute"), capacity=10, shares_prompt=False)
    reference.accompany(device=torch.device("cpu"))


# Which layers --------------------------------------------------------------------------------------------------------


def test_all_linear_is_what_peft_means_by_it(directory):
    model = base_model(directory)
    plain = get_peft_model(
        base_model(directory), LoraConfig(r=2, target_modules="all-linear", fan_in_fan_out=is_gpt2(model))
    )
    expected = {
        name.removeprefix("base_model.model.").removesuffix(".lora_A")
        for name, _ in plain.named_modules()
        if name.endswith(".lora_A")
    }
    assert set(target_layers(model, ["all-linear"])) == expected
    assert expected


@pytest.mark.parametrize(
    ("targets", "count"),
    [(("q_proj", "v_proj"), 4), (("self_attn.o_proj",), 2), (("model.layers.0.mlp.up_proj",), 1)],
)
def test_layers_are_chosen_by_the_end_of_their_names(llama, targets, count):
    model, names, adapters = adapted(llama, targets=targets)
    found = collected(names, adapters)
    assert len(found) == count
    assert all(name.removesuffix(".weight").endswith(targets) for name in found)
    assert sum(".lora_A." in name for name, _ in model.named_parameters()) == count


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (["q_proj", "qproj"], "'qproj' does not exist in LlamaForCausalLM; its linear layers are down_proj, gate_proj"),
        (["roj"], "'roj' does not exist"),
        (["lm_head"], "'lm_head' is not a linear layer, or the head"),
        (["embed_tokens"], "'embed_tokens' is not a linear layer"),
        (["self_attn"], "'self_attn' is not a linear layer"),
    ],
)
def test_target_that_gets_no_adapter_is_named(llama, targets, complaint):
    with pytest.raises(ConfigError, match=complaint):
        target_layers(base_model(llama), targets)


def test_model_without_linear_layers_is_refused(llama):
    model = base_model(llama)
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no linear layers"):
        target_layers(model, ["all-linear"])


# Merged --------------------------------------------------------------------------------------------------------------


def test_merged_weights_are_those_that_peft_merges(directory, tmp_path):
    _, names, adapters = adapted(directory)
    adapters.export(tmp_path / "adapter", collected(names, adapters))
    peft_merged = PeftModel.from_pretrained(base_model(directory), tmp_path / "adapter").merge_and_unload()
    expected = peft_merged.state_dict()
    ours = merged(names, adapters)
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0, msg=name)


def test_merged_policy_has_the_logprobs_of_the_adapted_one(directory):
    model, names, adapters = adapted(directory)
    before = {name: tensor.detach().clone() for name, tensor in names.items()}
    whole = base_model(directory)
    whole.load_state_dict(merged(names, adapters))
    torch.testing.assert_close(logits(whole), logits(model), atol=2e-4, rtol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in names.items())


def test_merging_bfloat16_rounds_once():
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((30, 20), (4, 20), (30, 4)))
    found = Adapter(a=a, b=b, scaling=0.01, is_transposed=False).merged_into(weight)
    exact = weight.double() + 0.01 * (b.double() @ a.double())
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() <= (exact.abs() * 2**-8).max()
    assert torch.equal(found, exact.float().bfloat16())


def test_adapter_in_peft_form_loads_with_the_same_logprobs(directory, tmp_path):
    model, names, adapters = adapted(directory)
    adapters.export(tmp_path / "adapter", collected(names, adapters))
    loaded = PeftModel.from_pretrained(base_model(directory), tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded), logits(model))
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(directory) and written["r"] == 4 and written["lora_alpha"] == 6.0


# On their way to a searcher ------------------------------------------------------------------------------------------


class HoldingEngine:
    """Checks what it is given as a real engine does, and computes with it."""

    def __init__(self, directory, *, dtype=torch.float32):
        self.model = base_model(directory, dtype)
        self.policy_version = 0
        self.lie = ""

    def load_policy(self, weights: Path, *, version: int) -> str:
        with mapped_weights(weights) as (shapes, tensors):
            assert shapes == shapes_of(self.model.state_dict())
            self.model.load_state_dict({name: tensor.clone() for name, tensor in tensors})
        self.policy_version = version
        return self.lie or fingerprint(weights)

    def sequence_logprobs(self, sequences):
        scores = []
        for ids, start in sequences:
            with torch.no_grad():
                table = self.model(torch.tensor([ids])).logits[0, start - 1 : -1].float().log_softmax(-1)
            scores.append(tuple(table.gather(-1, torch.tensor(ids[start:])[:, None])[:, 0].tolist()))
        return scores


PROBE = ProbeBatch(sequences=((tuple(IDS[0].tolist()), 2),))


def published_adapters(directory, weights_directory, model, names, adapters, *, version=1, dtype="float32"):
    untouched = dict(base_model(directory, getattr(torch, dtype)).state_dict(keep_vars=True))
    sources = base_sources(untouched, policy=directory)
    holder = HoldingEngine.__new__(HoldingEngine)
    holder.model = model
    return publish(
        weights_directory,
        version=version,
        write=lambda path: write_adapters(path, collected(names, adapters), dtype=dtype, sources=sources),
        probe=PROBE,
        probe_logprobs=holder.sequence_logprobs(PROBE.sequences),
    )


def reader(weights_directory, directory, *, limit=1e-3):
    return Subscriber(weights_directory, policy_directory=directory, max_logprob_difference=limit, clock=FakeClock())


def test_published_adapters_become_the_trainers_policy(directory, tmp_path):
    model, names, adapters = adapted(directory)
    published = published_adapters(directory, tmp_path, model, names, adapters)
    engine = HoldingEngine(directory)
    before = logits(engine.model)
    report = reader(tmp_path, directory).load(published, engine=engine)
    assert report is not None and report.alarms == ()
    assert report.fingerprint == published.fingerprint == fingerprint(weights_path(tmp_path, 1))
    assert report.max_logprob_difference < 1e-4
    assert not torch.allclose(logits(engine.model), before, atol=0.1)
    expected = merged(names, adapters)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in engine.model.state_dict().items())


@pytest.mark.fault("R-08")
def test_file_holds_adapters_only(llama, tmp_path):
    model, names, adapters = adapted(llama, rank=1, targets=("q_proj",))
    published = published_adapters(llama, tmp_path, model, names, adapters)
    assert set(load_file(weights_path(tmp_path, 1))) == {
        f"model.layers.{layer}.self_attn.q_proj.weight.lora_{part}" for layer in (0, 1) for part in "AB"
    }
    assert published.size_bytes < (llama / "model.safetensors").stat().st_size / 20


@pytest.mark.fault("I-20", "R-08")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_types_of_trainer_and_engine_may_differ(llama, tmp_path, dtype):
    model, names, adapters = adapted(llama, dtype=dtype)
    published = published_adapters(llama, tmp_path, model, names, adapters, dtype=dtype)
    description = read_description(weights_path(tmp_path, 1))
    assert description is not None and description.dtype == dtype
    expected = merged(names, adapters)
    with merged_file(weights_path(tmp_path, 1), description, base=BaseWeights(llama), directory=tmp_path) as whole:
        weights = load_file(whole)
    assert {tensor.dtype for tensor in weights.values()} == {getattr(torch, dtype)}
    assert weights.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())
    for engine_dtype in (torch.float32, torch.bfloat16):
        engine = HoldingEngine(llama, dtype=engine_dtype)
        report = reader(tmp_path, llama, limit=2.0).load(published, engine=engine)
        assert report is not None and report.alarms == ()


def test_fingerprint_of_a_file_of_adapters_is_the_same_each_time(llama, tmp_path):
    model, names, adapters = adapted(llama)
    prints = {published_adapters(llama, tmp_path / str(n), model, names, adapters).fingerprint for n in range(3)}
    assert len(prints) == 1


def test_adapters_that_are_not_merged_are_noticed(llama, tmp_path, monkeypatch, caplog):
    model, names, adapters = adapted(llama)
    published = published_adapters(llama, tmp_path, model, names, adapters)
    monkeypatch.setattr(adapter_file, "_read_adapters", lambda path, description: {})
    caplog.set_level(logging.ERROR)
    report = reader(tmp_path, llama).load(published, engine=HoldingEngine(llama))
    assert report is not None and report.fingerprint == published.fingerprint
    assert len(report.alarms) == 1 and "log-probs differ" in report.alarms[0]
    assert "alarm" in caplog.text


def test_engine_that_holds_something_else_is_noticed(llama, tmp_path):
    model, names, adapters = adapted(llama)
    published = published_adapters(llama, tmp_path, model, names, adapters)
    engine = HoldingEngine(llama)
    engine.lie = "0" * 32
    report = reader(tmp_path, llama).load(published, engine=engine)
    assert report is not None and report.fingerprint == engine.lie and "fingerprint" in report.alarms[0]


@pytest.mark.fault("I-19")
def test_adapters_that_never_change_are_noticed(llama, tmp_path):
    model, names, adapters = adapted(llama)
    subscription, engine = reader(tmp_path, llama), HoldingEngine(llama)
    for version in (1, 2):
        published = published_adapters(llama, tmp_path, model, names, adapters, version=version)
        report = subscription.load(published, engine=engine)
        assert report is not None and [("identical" in alarm) for alarm in report.alarms] == [True] * (version - 1)


def test_file_handed_to_an_engine_unmerged_does_not_fit(llama, tmp_path, monkeypatch):
    from tbactl.config.engine import EngineConfig
    from tbactl.engines.transformers_engine import TransformersEngine

    model, names, adapters = adapted(llama)
    published = published_adapters(llama, tmp_path, model, names, adapters)
    monkeypatch.setattr(subscriber, "read_adapter_description", lambda path: None)
    engine = TransformersEngine(EngineConfig(policy_directory=llama, max_model_tokens=64))
    with pytest.raises(ChildFailedError, match="is missing"):
        reader(tmp_path, llama).load(published, engine=engine)


def test_superseded_adapters_are_no_error_but_a_lost_base_is(llama, tmp_path):
    model, names, adapters = adapted(llama)
    published = published_adapters(llama, tmp_path / "weights", model, names, adapters)
    with pytest.raises(ChildFailedError, match="cannot be mapped"):
        reader(tmp_path / "weights", tmp_path).load(published, engine=HoldingEngine(llama))
    weights_path(tmp_path / "weights", 1).unlink()
    assert reader(tmp_path / "weights", llama).load(published, engine=HoldingEngine(llama)) is None


def file_of(path, llama, change):
    """A file of one adapter, changed before it is written."""
    _, names, adapters = adapted(llama, targets=("model.layers.0.self_attn.q_proj",))
    found = collected(names, adapters)
    sources = base_sources(dict(base_model(llama).state_dict(keep_vars=True)), policy=llama)
    change(found, sources)
    write_adapters(path, found, dtype="float32", sources=sources)
    return path


TARGET = "model.layers.0.self_attn.q_proj.weight"


def renamed(found, sources):
    found["model.layers.9.self_attn.q_proj.weight"] = found.pop(TARGET)


def too_wide(found, sources):
    old = found[TARGET]
    found[TARGET] = Adapter(a=torch.zeros(4, 7), b=old.b, scaling=old.scaling, is_transposed=False)


def without_source(found, sources):
    sources[TARGET] = "somewhere.else"


@pytest.mark.fault("I-20")
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (renamed, "adapter of model.layers.9.self_attn.q_proj.weight belongs to no parameter"),
        (too_wide, r"q_proj.weight: an adapter of shape \[64, 7\] does not fit a weight of \[64, 64\]"),
        (without_source, "has no weights somewhere.else"),
    ],
)
def test_names_and_shapes_that_do_not_fit_are_fatal(llama, tmp_path, change, complaint):
    path = file_of(tmp_path / "w", llama, change)
    description = read_description(path)
    assert description is not None
    with (
        pytest.raises(ChildFailedError, match=complaint),
        merged_file(path, description, base=BaseWeights(llama), directory=tmp_path),
    ):
        pass


def test_half_an_adapter_is_fatal(llama, tmp_path):
    path = file_of(tmp_path / "w", llama, lambda found, sources: None)
    description = read_description(path)
    assert description is not None
    write_safetensors(path, {name: tensor for name, tensor in load_file(path).items() if name.endswith("A")})
    with (
        pytest.raises(ChildFailedError, match="is incomplete"),
        merged_file(path, description, base=BaseWeights(llama), directory=tmp_path),
    ):
        pass


def test_damaged_file_is_said_to_be(tmp_path):
    (tmp_path / "w").write_bytes(b"no safetensors")
    with pytest.raises(ChildFailedError, match="damaged"):
        read_description(tmp_path / "w")


def test_full_file_system_is_a_capacity_error(llama, tmp_path, monkeypatch):
    path = file_of(tmp_path / "w", llama, lambda found, sources: None)
    description = read_description(path)
    assert description is not None

    def full(*arguments, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(adapter_file, "write_safetensors", full)
    with (
        pytest.raises(CapacityError, match="no room for whole weights"),
        merged_file(path, description, base=BaseWeights(llama), directory=tmp_path),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["w"]


def test_merged_file_has_no_name_while_it_is_used(llama, tmp_path):
    path = file_of(tmp_path / "w", llama, lambda found, sources: None)
    description = read_description(path)
    assert description is not None
    with merged_file(path, description, base=BaseWeights(llama), directory=tmp_path) as whole:
        assert [file.name for file in tmp_path.iterdir()] == ["w"]
        assert TARGET in load_file(whole)


# The base in the policy's files --------------------------------------------------------------------------------------


def test_tied_head_is_found_where_the_embedding_is(llama):
    names = dict(base_model(llama).state_dict(keep_vars=True))
    sources = base_sources(names, policy=llama)
    assert sources.keys() == names.keys()
    assert sources["lm_head.weight"] == "model.embed_tokens.weight"


def test_files_of_the_bare_transformer_and_files_in_pieces_are_found(tmp_path):
    whole = make_tiny_policy(tmp_path / "whole", architecture="gpt2")
    model = base_model(whole)
    for name, kwargs in (("bare", {}), ("pieces", {"max_shard_size": "40KB"})):
        (model.transformer if name == "bare" else model).save_pretrained(tmp_path / name, **kwargs)
        names = dict(model.state_dict(keep_vars=True))
        sources = base_sources(names, policy=tmp_path / name)
        assert sources.keys() == names.keys()
    assert len(list((tmp_path / "pieces").glob("*.safetensors"))) > 1
    assert BaseWeights(tmp_path / "bare").names == {
        n.removeprefix("transformer.") for n in names if n != "lm_head.weight"
    }


def test_base_that_is_not_loaded_as_it_is_stored_is_refused(llama):
    names = dict(base_model(llama).state_dict(keep_vars=True))
    with torch.no_grad():
        names["model.norm.weight"][0] += 1.0
    with pytest.raises(ConfigError, match=r"do not hold model\.norm\.weight.*Use sync\.weights = merged"):
        base_sources(names, policy=llama)


# Settings ------------------------------------------------------------------------------------------------------------


def problems(rule_set, **settings):
    config = RunConfig.model_validate({"name": "t", "task": {"kind": "fake"}, "policy": {"path": "p"}} | settings)
    return [problem.sentence for rule in rule_set for problem in rule(config)]


def lora(**settings):
    return {"path": "p", "lora_rank": 8} | settings


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"policy": lora(lora_target_modules=[])}, "must name at least one layer"),
        ({"policy": lora(lora_target_modules=["all-linear", "q_proj"])}, "alone"),
        ({"policy": lora(), "reference": {"kind": "reset"}}, "must be 'initial' with policy.lora_rank > 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, complaint):
    assert any(complaint in text for text in problems(rules.ERRORS, **settings))
    assert not any("lora" in text for text in problems(rules.ERRORS, policy=lora()))


def test_settings_without_adapters_have_no_effect():
    found = problems(
        rules.WARNINGS,
        policy={"path": "p", "lora_alpha": 3.0, "lora_target_modules": ["q_proj"]},
        sync={"weights": "adapter"},
    )
    for name in ("policy.lora_alpha", "policy.lora_target_modules", "sync.weights"):
        assert any(name in text and "has no effect" in text for text in found), name
    assert not any("lora" in text for text in problems(rules.WARNINGS))


def test_adapter_does_not_share_memory_with_the_trained_one(llama):
    _, names, adapters = adapted(llama)
    before = copy.deepcopy(collected(names, adapters)[TARGET].b)
    with torch.no_grad():
        adapters.parts(names[TARGET])[1].add_(1.0)
    assert torch.equal(collected(names, adapters)[TARGET].b, before + 1.0)
