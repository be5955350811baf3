"""`python -m tests.support.min_new_tokens_process ENGINE POLICY MINIMUM`: what an engine samples, as JSON.

In a process of its own, as a searcher is. Prints a list of [prompt ids, completion ids, log-probs, finish reason].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tbactl import registry
from tbactl.config.engine import EngineConfig
from tbactl.protocols import GenerationRequest
from tbactl.types import SamplingParams

TEMPERATURE = 0.7
NUM_COMPLETIONS = 24


def main() -> None:
    name, policy, minimum = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    config = EngineConfig(policy_directory=policy, max_model_tokens=64, max_concurrent_sequences=32, cores=(0,))
    engine = registry.load("tbactl.engines", name)(config)
    sampling = SamplingParams(max_new_tokens=16, min_new_tokens=minimum, temperature=TEMPERATURE)
    prompts = [engine.encode(f"prompt {number}") for number in range(NUM_COMPLETIONS)]
    for number, prompt in enumerate(prompts):
        request = GenerationRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, seed=number)
        engine.submit(request)
    sampled = []
    while engine.num_unfinished:
        for finished in engine.step():
            completion = finished.completion
            prompt = prompts[int(finished.request_id)]
            sampled.append([prompt, completion.token_ids, completion.logprobs, completion.finish_reason])
    engine.close()
    print(json.dumps(sampled))


if __name__ == "__main__":
    main()
