"""The layout in which a prompt is read once gives what one plain forward pass for each trajectory gives, gradients
included: for several architectures, with layers that are recomputed, and under every ZeRO stage."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

from tbactl.trainer import prompt_cache
from tbactl.trainer.collate import collate
from tbactl.trainer.recompute import recompute_layers
from tbactl.trainer.scoring import ScoringModel
from tbactl.trainer.scoring_check import check_scoring
from tests.support.rank_processes import run_ranks
from tests.support.tiny_policy import make_tiny_policy
from tests.support.trainer_groups import make_config, make_group, make_groups

VOCABULARY = 50
TEMPERATURE = 0.7

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ROTARY = SIZES | {"intermediate_size": 24, "max_position_embeddings": 64}
NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64} | NO_SPECIAL_TOKENS
CONFIGS = {
    "llama, grouped queries, tied head": LlamaConfig(**ROTARY, num_key_value_heads=2, tie_word_embeddings=True),
    "llama, untied head": LlamaConfig(**ROTARY, num_key_value_heads=4, tie_word_embeddings=False),
    "qwen2, one key head, tied head": Qwen2Config(**ROTARY, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen2, untied head": Qwen2Config(**ROTARY, num_key_value_heads=2, tie_word_embeddings=False),
    "gpt2, tied head": GPT2Config(**GPT2, n_inner=24),
    "gpt2, untied head, scaled by layer": GPT2Config(
        **GPT2, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False
    ),
    "gpt_neox, untied head": GPTNeoXConfig(**ROTARY, tie_word_embeddings=False),
    "gpt_neox, sequential, tied head": GPTNeoXConfig(**ROTARY, tie_word_embeddings=True, use_parallel_residual=False),
}

shapes = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 7), min_size=1, max_size=5)), min_size=1, max_size=4
)


def random_policy(config, *, dtype=torch.float64, recomputes=False):
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0.0, 0.3) if parameter.dim() == 2 else parameter.add_(0.1 * torch.randn(parameter.shape))
    if dtype == torch.float64:
        make_norms_exact(policy)
    if recomputes:
        recompute_layers(policy)
    return policy


def make_norms_exact(policy):
    """Llama's and Qwen's norms compute in float32 whatever comes in, and round off by more than is asked here."""
    for parent in list(policy.modules()):
        for name, norm in parent.named_children():
            if type(norm).__name__.endswith("RMSNorm"):
                exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
                exact.weight = norm.weight
                setattr(parent, name, exact)


def scoring_model(policy):
    return ScoringModel(policy, temperature=TEMPERATURE, chunk_tokens=5)


def groups_of(shapes):
    return [
        make_group(prompt_tokens=prompt, completion_tokens=lengths, vocabulary=VOCABULARY, prompt_id=number)
        for number, (prompt, lengths) in enumerate(shapes)
    ]


def plain_logprobs(policy, group, trajectory):
    """One sequence alone, through the model's own head."""
    ids = torch.tensor([[*group.prompt_token_ids, *trajectory.completion.token_ids]])
    logprobs = (policy(input_ids=ids, use_cache=False).logits[0] / TEMPERATURE).log_softmax(-1)
    start = len(group.prompt_token_ids)
    return logprobs[start - 1 : -1].gather(-1, ids[0, start:, None]).squeeze(-1)


def gradients(policy, value):
    policy.zero_grad()
    value.backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters()}


def flat(tensors):
    return torch.cat([tensor.flatten().double() for tensor in tensors.values()])


def compare(policy, groups, *, seed=1):
    """Largest difference of log-probs, and relative one of the gradient of a random combination of them."""
    plain = torch.cat([plain_logprobs(policy, group, t) for group in groups for t in group.trajectories])
    batch = collate(groups, shares_prompt=True)
    shared = scoring_model(policy)(batch)
    assert not shared[~batch.completion_mask].any()
    shared = shared[batch.completion_mask]
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(seed), dtype=plain.dtype)
    expected = flat(gradients(policy, (weights * plain).sum()))
    found = flat(gradients(policy, (weights * shared).sum()))
    norm = max(float(expected.norm()), 1e-300)
    return (shared - plain).abs().max().item() if len(plain) else 0.0, float((found - expected).norm()) / norm


# Against one plain pass for each trajectory --------------------------------------------------------------------------


@pytest.fixture(scope="module", params=CONFIGS)
def architecture(request):
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def policies(architecture):
    return {recomputes: random_policy(architecture, recomputes=recomputes) for recomputes in (False, True)}


@settings(max_examples=25)
@given(shapes=shapes, recomputes=st.booleans())
def test_shared_prompt_any_shapes_equals_the_plain_forward_in_float64(policies, shapes, recomputes):
    logprobs, gradient = compare(policies[recomputes], groups_of(shapes))
    assert logprobs < 1e-9
    assert gradient < 1e-9


@pytest.mark.parametrize("recomputes", [False, True])
def test_shared_prompt_equals_the_plain_forward_in_float32(architecture, recomputes):
    policy = random_policy(architecture, dtype=torch.float32, recomputes=recomputes)
    logprobs, gradient = compare(policy, groups_of([(9, [7, 1, 0, 4]), (2, [3]), (5, [6, 6, 2])]))
    assert logprobs < 1e-4
    assert gradient < 1e-5


def test_shared_prompt_gradient_of_prompt_embeddings_equals_the_plain_ones(architecture):
    policy = random_policy(architecture)
    groups = groups_of([(3, [4, 2, 1]), (7, [5, 5])])
    outputs = []

    def keep(module, inputs, output):
        outputs.append(output)
        output.retain_grad()

    policy.get_input_embeddings().register_forward_hook(keep)
    sum(plain_logprobs(policy, group, t).sum() for group in groups for t in group.trajectories).backward()
    expected = [
        sum(output.grad[0, :length] for output in outputs[first:last]) for first, last, length in ((0, 3, 3), (3, 5, 7))
    ]
    outputs.clear()
    scoring_model(policy)(collate(groups, shares_prompt=True)).sum().backward()
    for row, (found, plain) in enumerate(zip(outputs[0].grad, expected, strict=True)):
        torch.testing.assert_close(found[: len(plain)], plain, atol=1e-9, rtol=1e-9)
        assert plain.abs().sum(-1).min() > 1e-6, f"every token of prompt {row} matters"


@pytest.mark.parametrize("recomputes", [False, True])
def test_check_scoring_architecture_shares_prompts(architecture, recomputes):
    for dtype in (torch.float32, torch.bfloat16):
        policy = random_policy(architecture, dtype=dtype, recomputes=recomputes)
        assert check_scoring(scoring_model(policy)) is None


def test_recomputed_layers_keep_fewer_activations(architecture):
    """Otherwise the tests above would say nothing."""

    def num_saved(*, recomputes):
        saved = []
        policy = random_policy(architecture, recomputes=recomputes)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.shape) or tensor, lambda t: t):
            scoring_model(policy)(collate(groups_of([(5, [3, 4])]), shares_prompt=True))
        return len(saved)

    assert num_saved(recomputes=True) < num_saved(recomputes=False) / 2


# Where it cannot be --------------------------------------------------------------------------------------------------


def test_check_scoring_cache_that_cuts_gradients_off_is_noticed(monkeypatch):
    def detached(self, key_states, value_states, *args, **kwargs):
        self.keys, self.values, self.is_initialized = key_states.detach(), value_states.detach(), True
        return key_states, value_states

    monkeypatch.setattr(prompt_cache._PromptLayer, "update", detached)
    policy = random_policy(CONFIGS["llama, untied head"])
    assert "gradients would differ" in (check_scoring(scoring_model(policy)) or "")


@pytest.mark.parametrize(
    ("config", "is_shared"),
    [
        (Qwen2Config(**ROTARY, num_key_value_heads=2, use_sliding_window=False, sliding_window=4), True),
        (
            Qwen2Config(
                **ROTARY, num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1
            ),
            False,
        ),
        (MistralConfig(**ROTARY, num_key_value_heads=2, sliding_window=4), False),
        (MistralConfig(**ROTARY, num_key_value_heads=2, sliding_window=None), True),
    ],
    ids=["qwen2 window off", "qwen2 window on", "mistral window on", "mistral window off"],
)
def test_check_scoring_sliding_window_is_not_shared(config, is_shared):
    obstacle = check_scoring(scoring_model(random_policy(config)))
    assert (obstacle is None) == is_shared
    assert is_shared or "sliding window" in obstacle


# In the learner ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "llama", hidden_size=40)


def trained(tmp_path, directory, *, lora_rank=0, **trainer):
    """Losses of two steps, and the policy's weights after them."""
    from tbactl.trainer.learner import DeepSpeedLearner

    config = make_config(
        tmp_path,
        policy_directory=directory,
        policy={"path": str(directory), "lora_rank": lora_rank},
        searchers={"temperature": TEMPERATURE},
        trainer={"micro_batch_tokens": 80, "learning_rate": 1e-4, "completions_per_prompt": 7} | trainer,
    )
    learner = DeepSpeedLearner(config)
    reports = [learner.update(make_groups(4, seed=seed), beta=0.1, should_abort=lambda: False) for seed in range(2)]
    learner.write_weights(tmp_path / "weights.safetensors")
    learner.close()
    return [report.metrics["objective/loss/mean"] for report in reports], load_file(tmp_path / "weights.safetensors")


def assert_same_training(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    assert ours[1].keys() == theirs[1].keys()
    for name, tensor in ours[1].items():
        torch.testing.assert_close(tensor, theirs[1][name], atol=1e-6, rtol=0, msg=name)


@pytest.fixture(scope="module")
def padded(process_group, directory, tmp_path_factory):
    """The same steps with padded rows, with and without adapters."""
    results = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tbactl.trainer.learner.check_scoring", lambda model: "for the sake of comparison")
        for lora_rank in (0, 2):
            results[lora_rank] = trained(tmp_path_factory.mktemp("padded"), directory, lora_rank=lora_rank)
    return results


@pytest.mark.slow
# Every pair of two settings occurs, not every combination: each takes seconds.
@pytest.mark.parametrize(
    ("zero_stage", "recomputes", "lora_rank"),
    [
        (0, False, 0),
        (0, True, 2),
        (1, False, 2),
        (1, True, 0),
        (2, False, 0),
        (2, True, 2),
        (3, False, 2),
        (3, True, 0),
    ],
)
def test_learner_trains_as_with_padded_rows(directory, tmp_path, padded, caplog, zero_stage, recomputes, lora_rank):
    caplog.set_level("INFO", logger="tbactl")
    found = trained(tmp_path, directory, lora_rank=lora_rank, zero_stage=zero_stage, gradient_checkpointing=recomputes)
    assert_same_training(found, padded[lora_rank])
    assert "layout=shared-prompt" in caplog.text
    assert "prompts are not shared" not in caplog.text


@pytest.mark.slow
def test_learner_model_with_a_window_warns_once_and_says_what_it_costs(directory, tmp_path, process_group, caplog):
    caplog.set_level("INFO", logger="tbactl")
    windowed = tmp_path / "windowed"
    shutil.copytree(directory, windowed)
    config = json.loads((windowed / "config.json").read_text())
    (windowed / "config.json").write_text(json.dumps(config | {"sliding_window": 4096}))
    trained(tmp_path, windowed)
    (warning,) = [record for record in caplog.records if "prompts are not shared" in record.message]
    assert warning.levelname == "WARNING"
    assert "sliding window" in warning.message and "prompts are read 7 times" in warning.message
    assert "layout=padded" in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("zero_stage", "settings"),
    [
        (2, {}),
        (3, {"gradient_checkpointing": True}),
    ],
)
def test_two_ranks_train_as_one(directory, tmp_path, one_rank, zero_stage, settings):
    found = trained_by_ranks(tmp_path / "two", directory, num_ranks=2, zero_stage=zero_stage, **settings)
    losses, weights = one_rank
    assert found[0] == pytest.approx(losses, rel=1e-3)
    for name, tensor in weights.items():
        torch.testing.assert_close(found[1][name], tensor, atol=1e-5, rtol=0, msg=name)


@pytest.fixture(scope="module")
def one_rank(directory, tmp_path_factory):
    return trained_by_ranks(tmp_path_factory.mktemp("ranks") / "one", directory, num_ranks=1, zero_stage=1)


def trained_by_ranks(root, directory, *, num_ranks, **trainer):
    run_ranks(
        root,
        directory,
        num_ranks=num_ranks,
        arguments=("2",),
        searchers={"temperature": TEMPERATURE},
        trainer={"micro_batch_tokens": 80, "learning_rate": 1e-4} | trainer,
    )
    metrics = json.loads((root / "result.json").read_text())["metrics"]
    return [step["objective/loss/mean"] for step in metrics], load_file(root / "weights.safetensors")
