"""`python -m tests.support.conformance_process ENGINE ARCHITECTURE FOLDER`: all checks, in a process of their own.

That is how an engine lives: vLLM does not share a process well with what other tests import.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from tbactl import registry
from tbactl.config.engine import EngineConfig
from tbactl.engines.policy_files import load_tokenizer, stop_token_ids
from tbactl.testing.engine_conformance import CHECKS, EngineUnderTest
from tests.support.tiny_policy import Architecture, make_tiny_policy


def main() -> None:
    engine, architecture, scratch = sys.argv[1], cast(Architecture, sys.argv[2]), Path(sys.argv[3])
    eos_bias = 3.0 if architecture == "gpt_neox" else 1.5  # some completions must stop, some must not
    policy = make_tiny_policy(scratch / "policy", architecture=architecture, eos_bias=eos_bias)
    config = EngineConfig(policy_directory=policy, max_model_tokens=192, max_concurrent_sequences=48, cores=(0,))
    stop_ids = stop_token_ids(config.policy_directory, load_tokenizer(config), trust_remote_code=False)
    under_test = EngineUnderTest(
        registry.load("tbactl.engines", engine), config=config, stop_ids=stop_ids, scratch=scratch
    )
    for check in CHECKS:
        check(under_test)
        print(f"passed {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
