"""One contestant of benchmarks/searcher_speed.py: a batch of prompts when it is asked.

python -m benchmarks.searching_worker tbactl|vllm|vllm-plain THREADS DESCRIPTOR
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.measuring import Stopwatch, serve
from benchmarks.training_work import COMPLETION_TOKENS, gsm8k_run
from tbactl.clock import SystemClock
from tbactl.config.engine import EngineConfig, parse_options
from tbactl.config.layout import SHM_ROOT, ProcessConfig
from tbactl.config.tasks import build_task
from tbactl.ipc.child import Pulse
from tbactl.ipc.control_page import ControlPage, RunState
from tbactl.ipc.ring import RingReader, RingWriter, create_ring
from tbactl.searcher.delivery import Outbox, UidSource
from tbactl.searcher.evaluation import Evaluator
from tbactl.searcher.loop import Searcher, SearcherParts
from tbactl.searcher.prompt_stream import Cursor, PromptStream, StreamedPrompt
from tbactl.searcher.scoring import Scorer
from tbactl.searcher.status import Status
from tbactl.supervision.policy import resolve_policy
from tbactl.telemetry.trace import process_trace
from tbactl.weight_sync.subscriber import Subscriber

RING_BYTES = 2**26
LIMIT_S = 600.0

Search = Callable[[str, int], dict[str, float]]


def main() -> None:
    """Load the contestant, then take turns."""
    name, threads, descriptor = sys.argv[1:]
    cores = tuple(sorted(os.sched_getaffinity(0)))[: int(threads)]
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory(dir=SHM_ROOT) as scratch:
        config = _config(Path(scratch), cores=cores)
        search = of_tbactl(config) if name == "tbactl" else of_vllm(config, with_logprobs=name == "vllm")
        serve(lambda asked: search(asked["kind"], asked["num_groups"]), descriptor=int(descriptor))


def _config(scratch: Path, *, cores: tuple[int, ...]) -> ProcessConfig:
    run = gsm8k_run()
    # Else it would evaluate the initial policy first.
    run = run.model_copy(update={"evaluation": run.evaluation.model_copy(update={"num_prompts": 0})})
    return ProcessConfig(
        role="searcher",
        index=0,
        run=run,
        run_directory=scratch / "run",
        shm_directory=scratch,
        policy_directory=resolve_policy(run),
        cores=cores,
    )


def lengths_of(kind: str, config: ProcessConfig) -> tuple[int, int]:
    """Least and most tokens of a completion."""
    return (COMPLETION_TOKENS, COMPLETION_TOKENS) if kind == "long" else (0, config.run.searchers.max_new_tokens)


class BatchStream(PromptStream):
    """A prompt stream that says when a batch has been taken."""

    def __init__(self, *arguments: Any, when_taken: Callable[[], None], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.num_left = 0
        self._when_taken = when_taken

    def take(self) -> StreamedPrompt:
        """The next prompt."""
        self.num_left -= 1
        if self.num_left == 0:
            self._when_taken()
        return super().take()


def of_tbactl(config: ProcessConfig) -> Search:
    """The searcher as `tbactl.searcher.run` builds it; the trainer's and the supervisor's words are set by hand."""
    from tbactl.engines.vllm_engine import VllmEngine

    clock, run = SystemClock(), config.run
    page = ControlPage.create(config.shm.control, num_trainer_ranks=1, num_searchers=1)
    page.supervisor.set(run_state=RunState.RUNNING)
    slot = page.searcher(0)
    task = build_task(run.task.kind, run.task.options)
    engine = VllmEngine(EngineConfig.from_process(config))
    create_ring(config.shm.ring(0), capacity_bytes=RING_BYTES)
    ring, reader = RingWriter.open(config.shm.ring(0)), RingReader.open(config.shm.ring(0))
    stream = BatchStream(
        task.prompts("train", seed=run.seed),
        encode=engine.encode,
        max_prompt_tokens=run.searchers.max_prompt_tokens,
        searcher=0,
        num_searchers=1,
        # A trainer that needs no more: the batch is generated to its end, nothing is started.
        when_taken=lambda: page.trainer().set(finished=1),
    )
    cursor = Cursor(stream.next_position, stride=1)
    parts = SearcherParts(
        engine=engine,
        stream=stream,
        scorer=Scorer(task, clock=clock, limit_s=LIMIT_S),
        outbox=Outbox(
            ring,
            cursor=cursor,
            slot=slot,
            searcher=0,
            uids=UidSource(searcher=0, resumed_step=None, attempt=1),
            in_order=False,
        ),
        ring=ring,
        subscriber=Subscriber(
            config.shm.weights, policy_directory=config.policy_directory, max_logprob_difference=0.1, clock=clock
        ),
        evaluator=Evaluator(config, task=task, engine=engine, page=page, resumed_version=0, clock=clock),
        status=Status(slot, clock=clock),
        trace=process_trace(config),
    )

    def search(kind: str, num_groups: int) -> dict[str, float]:
        least, most = lengths_of(kind, config)
        settings = run.searchers.model_copy(update={"min_new_tokens": least, "max_new_tokens": most})
        own = config.model_copy(update={"run": run.model_copy(update={"searchers": settings})})
        searcher = Searcher(
            own, parts, page=page, pulse=Pulse(slot, supervisor=page.supervisor), must_load=False, clock=clock
        )
        stream.num_left = num_groups
        page.trainer().set(finished=0)
        before, watch = slot.snapshot(), Stopwatch()
        while slot.get("num_groups_written") < before["num_groups_written"] + num_groups:
            if not searcher.turn():
                time.sleep(0.001)
            assert watch.seconds()["seconds"] < LIMIT_S
        taken = watch.seconds()
        while reader.try_read() is not None:
            pass
        after = slot.snapshot()
        return taken | {
            "tokens": after["tokens_generated"] - before["tokens_generated"],
            "completions": after["num_completions"] - before["num_completions"],
        }

    return search


def of_vllm(config: ProcessConfig, *, with_logprobs: bool) -> Search:
    """Only vLLM, in this process too, with the engine's arguments and as many sequences at a time."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    from tbactl.engines.vllm_engine import VllmOptions, engine_arguments

    run = config.run
    engine_config = EngineConfig.from_process(config)
    options = parse_options(VllmOptions, engine_config.options, engine="vllm")
    # The searcher's engine has some places more, for the probe of new weights.
    places: dict[str, Any] = {"max_num_seqs": engine_config.max_concurrent_sequences}
    llm = LLM(**engine_arguments(engine_config, options) | places)
    tokenizer = llm.get_tokenizer()
    prompts = build_task(run.task.kind, run.task.options).prompts("train", seed=run.seed)

    def search(kind: str, num_groups: int) -> dict[str, float]:
        least, most = lengths_of(kind, config)
        sampling = SamplingParams(
            n=run.searchers.num_completions,
            temperature=run.searchers.temperature,
            min_tokens=least,
            max_tokens=most,
            logprobs=0 if with_logprobs else None,
            flat_logprobs=with_logprobs,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        batch = [TokensPrompt(prompt_token_ids=tokenizer.encode(prompt.text)) for prompt in islice(prompts, num_groups)]
        watch = Stopwatch()
        outputs = llm.generate(batch, sampling, use_tqdm=False)
        taken = watch.seconds()
        lengths = [len(answer.token_ids) for output in outputs for answer in output.outputs]
        assert len(lengths) == num_groups * run.searchers.num_completions
        return taken | {"tokens": sum(lengths), "completions": len(lengths)}

    return search


if __name__ == "__main__":
    main()
