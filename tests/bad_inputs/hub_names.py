"""Names of models and data sets on a hub that cannot be reached."""

from __future__ import annotations

from tests.bad_inputs.case import CONFIG, TASK, case

ALONE = "--set task.options.reference_policy=none --engine fake"
CASES = [
    case("hub-model-offline", "eval org/model --task math", CONFIG, "'org/model'", "HF_HUB_OFFLINE"),
    case("hub-name-without-owner", "eval gpt2 --task math", CONFIG, "'gpt2'", "ORG/NAME"),
    case("hub-name-of-three-parts", "eval a/b/c --task math", CONFIG, "'a/b/c'", "ORG/NAME"),
    case("hub-name-with-spaces", "eval 'org/my model' --task math", CONFIG, "'org/my model'"),
    case("hub-name-climbing", "eval ../../etc --task math", CONFIG, "../../etc"),
    case("hub-url", "eval https://huggingface.co/org/model --task math", CONFIG, "ORG/NAME"),
    case("hub-name-empty", "eval '' --task math", CONFIG, "''"),
    case(
        "hub-model-in-run",
        "run ok.toml --set policy.path=org/model --set searchers.engine=transformers",
        CONFIG,
        "org/model",
        "HF_HUB_OFFLINE",
    ),
    case(
        "hub-problems-offline",
        "eval r --task math --set task.options.problems=gsm8k --engine fake",
        TASK,
        "openai/gsm8k",
        ".jsonl",
        has_run=True,
    ),
    case(
        "hub-documents-offline",
        f"eval r --task preference --set task.options.documents=org/data {ALONE}",
        TASK,
        "org/data",
        ".jsonl",
        has_run=True,
    ),
    case(
        "hub-documents-misspelt",
        "eval r --task preference --set task.options.documents=tlrd --engine fake",
        CONFIG,
        "did you mean 'tldr'",
        has_run=True,
    ),
    case(
        "hub-comparisons-offline",
        "reward train reward-tldr-gold --set data.source=org/pairs --set data.options={} --set data.kinds=[] "
        "--set data.origins=[] --output out",
        TASK,
        "org/pairs",
        ".jsonl",
    ),
    case(
        "hub-reward-model-offline",
        f"eval r --task preference --set task.options.reward_model=org/judge {ALONE}",
        CONFIG,
        "org/judge",
        has_run=True,
    ),
    case("package-policy-unknown", "eval package:gpt-9 --task math", CONFIG, "package:gpt-9", "known"),
    case("task-policy-unknown", "eval task:gpt-9 --task math", CONFIG, "gpt-9"),
    case("task-policy-climbing", "eval task:../../../etc --task math", CONFIG, "../../../etc"),
    case("task-policy-of-unknown-task", "eval task:maths/small --task math", CONFIG, "did you mean 'math'"),
    case("eval-unknown-engine", "eval r --engine vlm", CONFIG, "did you mean 'vllm'", has_run=True),
    case("eval-unknown-harness", "eval r --harness lm_eval --engine fake", CONFIG, "native", has_run=True),
    case("eval-negative-limit", "eval r --limit -5 --engine fake", CONFIG, "limit = -5", has_run=True),
    case("eval-no-samples", "eval r --num-samples 0 --engine fake", CONFIG, "num_samples = 0", has_run=True),
    case("eval-nan-temperature", "eval r --temperature nan --engine fake", CONFIG, "temperature", has_run=True),
    case(
        "eval-greedy-samples", "eval r --num-samples 4 --temperature 0 --engine fake", CONFIG, "raise it", has_run=True
    ),
    case("eval-output-is-file", "eval r --output ok.toml --engine fake", CONFIG, "ok.toml", has_run=True),
    case("eval-without-task", "eval task:x", CONFIG, "task"),
]
