"""lm-evaluation-harness over our engine: the harness asks, our searcher's engine answers.

The only module that imports lm_eval. It offers two things: `EngineLM`, any engine as an lm-eval model, and `run`, which
evaluates either one of our tasks (its own held-out prompts and its own reward) or any task that lm-eval knows by name.
Results keep lm-eval's layout, so its tools read them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import handle_non_serializable

from tbactl.engines.generate import generate
from tbactl.protocols import Engine, GenerationRequest, Task
from tbactl.types import Completion, Prompt, SamplingParams


class EngineLM(LM):
    """An engine as lm-eval sees a model. Prompts are passed as they come, without a chat template."""

    def __init__(self, engine: Engine, *, max_new_tokens: int) -> None:
        super().__init__()
        self._engine = engine
        self._max_new_tokens = max_new_tokens

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Completions, cut before the first stop string. Requests that sample alike run together."""
        asked: list[tuple[str, dict[str, Any]]] = [request.arguments for request in requests]
        by_sampling: defaultdict[SamplingParams, list[int]] = defaultdict(list)
        for i, (_, options) in enumerate(asked):
            by_sampling[self._sampling(options)].append(i)
        texts = [""] * len(requests)
        for sampling, members in by_sampling.items():
            answers = self._answer([asked[i][0] for i in members], sampling)
            for i, answer in zip(members, answers, strict=True):
                texts[i] = _cut(answer.text, asked[i][1].get("until") or [])
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Summed log-prob of each continuation, and whether greedy decoding would have produced it."""
        pairs = [self._encode_pair(*request.args) for request in requests]
        scores = self._engine.sequence_logprobs(pairs)
        return [
            (sum(logprobs), self._is_greedy(ids, prompt_length))
            for (ids, prompt_length), logprobs in zip(pairs, scores, strict=True)
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Summed log-prob of whole texts; the first token, which nothing precedes, is not scored."""
        sequences = [(self._engine.encode(request.args[0]), 1) for request in requests]
        return [sum(logprobs) for logprobs in self._engine.sequence_logprobs(sequences)]

    def _sampling(self, options: dict[str, Any]) -> SamplingParams:
        greedy = not options.get("do_sample", False)
        return SamplingParams(
            max_new_tokens=int(options.get("max_gen_toks") or self._max_new_tokens),
            temperature=0.0 if greedy else float(options.get("temperature", 1.0)),
            top_p=float(options.get("top_p", 1.0)),
        )

    def _answer(self, texts: Sequence[str], sampling: SamplingParams) -> list[Completion]:
        prompts = [Prompt(prompt_id=i, text=text) for i, text in enumerate(texts)]
        return [completions[0] for completions in generate(self._engine, prompts, 1, sampling)]

    def _encode_pair(self, context: str, continuation: str) -> tuple[tuple[int, ...], int]:
        # Encoded together, then split: a tokenizer may merge across the seam.
        context_length = len(self._engine.encode(context)) if context else 1
        return self._engine.encode(context + continuation), max(1, context_length)

    def _is_greedy(self, ids: tuple[int, ...], prompt_length: int) -> bool:
        target = ids[prompt_length:]
        sampling = SamplingParams(max_new_tokens=len(target), temperature=0.0)
        request_id = f"greedy-{hash(ids)}"
        self._engine.submit(
            GenerationRequest(request_id=request_id, prompt_token_ids=ids[:prompt_length], sampling=sampling)
        )
        while self._engine.num_unfinished:
            for finished in self._engine.step():
                if finished.request_id == request_id and finished.completion is not None:
                    return finished.completion.token_ids == target
        return False


def _cut(text: str, stops: Sequence[str] | str) -> str:
    """The text before the first stop string."""
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop:
            text = text.split(stop, 1)[0]
    return text


def own_task(task: Task, prompts: Sequence[Prompt], *, max_new_tokens: int) -> ConfigurableTask:
    """One of our tasks in lm-eval's form: its prompts verbatim, greedy, scored by its own reward as `exact_match`."""

    def rows(**_: Any) -> dict[str, datasets.Dataset]:
        records = [{"prompt_id": p.prompt_id, "text": p.text, "facts": json.dumps(p.facts)} for p in prompts]
        return {"test": datasets.Dataset.from_list(records)}

    def score(document: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
        prompt = Prompt(prompt_id=document["prompt_id"], text=document["text"], facts=json.loads(document["facts"]))
        completion = Completion(token_ids=(), logprobs=(), text=results[0], finish_reason="stop")
        return {"exact_match": task.score(prompt, [completion])[0].value}

    return ConfigurableTask(
        config={
            "task": f"tbactl_{task.name}",
            "custom_dataset": rows,
            "test_split": "test",
            "doc_to_text": lambda document: document["text"],
            "doc_to_target": lambda document: json.loads(document["facts"]).get("answer", ""),
            "process_results": score,
            "output_type": "generate_until",
            "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": max_new_tokens},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            "num_fewshot": 0,
            "metadata": {"version": 1.0},
        }
    )


def run(
    engine: Engine,
    tasks: Sequence[ConfigurableTask | str],
    *,
    max_new_tokens: int,
    limit: int,
    seed: int,
    model_name: str,
    output: Path | None,
) -> dict[str, Any]:
    """Evaluate and return lm-eval's results dictionary (without samples); write it, and the samples, under `output`.

    Args:
        engine: Answers all requests.
        tasks: From `own_task`, or names of lm-eval's own tasks (whose data must be in the local hub cache).
        max_new_tokens: Where a task does not say.
        limit: Documents of each task; 0 is all of them.
        seed: For few-shot sampling and everything else that lm-eval draws.
        model_name: Names the folder under `output`.
        output: Directory for results_*.json and samples_*.jsonl; None writes nothing.
    """
    tracker = EvaluationTracker(output_path=str(output)) if output else None
    if tracker is not None:
        tracker.general_config_tracker.log_experiment_args(
            model_source="tbactl",
            model_args=f"pretrained={model_name}",
            system_instruction="",
            chat_template="",
            fewshot_as_multiturn=False,
        )
    results = simple_evaluate(
        model=EngineLM(engine, max_new_tokens=max_new_tokens),
        tasks=list(tasks),
        limit=limit or None,
        bootstrap_iters=1000,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
        evaluation_tracker=tracker,
        log_samples=output is not None,
    )
    assert results is not None, "lm-eval returns results on rank 0"
    plain: dict[str, Any] = dict(results)
    samples = plain.pop("samples", None) or {}
    if tracker is not None:
        tracker.save_results_aggregated(results=plain, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    return json.loads(json.dumps(plain, default=handle_non_serializable))
