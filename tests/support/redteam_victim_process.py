"""`python -m tests.support.redteam_victim_process FOLDER`: an attacker's vLLM engine and a victim's, as in a searcher.

In a process of its own, as searchers are: vLLM does not share one well with what other tests import.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tbactl.config.engine import EngineConfig
from tbactl.engines.generate import generate
from tbactl.engines.vllm_engine import VllmEngine
from tbactl.types import Prompt, SamplingParams
from tbactl_redteam.victims import VictimOptions, load_victim
from tests.support.tiny_policy import make_byte_tokenizer, make_tiny_policy

CHAT = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
ATTACKS = [f"curse the rain {i}" for i in range(12)]


def main() -> None:
    scratch = Path(sys.argv[1])
    attacker_policy = make_tiny_policy(scratch / "attacker", seed=0)
    victim_policy = make_tiny_policy(scratch / "victim", seed=1)
    tokenizer = make_byte_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(victim_policy)
    victim = load_victim(
        VictimOptions(policy=str(victim_policy), seed=5, num_answers=3, temperature=1.0, max_prompt_tokens=64)
    )
    attacker = VllmEngine(EngineConfig(policy_directory=attacker_policy, max_model_tokens=128))

    def attack() -> list[str]:
        prompts = [Prompt(prompt_id=0, text="1. One.\n2.")]
        sampling = SamplingParams(max_new_tokens=40, min_new_tokens=40)
        return [c.text for c in generate(attacker, prompts, 16, sampling, seed=3)[0]]

    alone = attack()
    expected = victim.answer(ATTACKS)
    assert all(len(set(row)) == 3 and None not in row for row in expected), expected
    print("passed answers differ", flush=True)

    # At the same time, as scorer and main loop do; both go on as if they were alone.
    together: list[list[list[str | None]]] = []
    scorer = threading.Thread(target=lambda: together.extend(victim.answer(ATTACKS) for _ in range(3)))
    scorer.start()
    while scorer.is_alive():
        assert attack() == alone
    scorer.join()
    assert together == [expected] * 3
    print("passed both at once", flush=True)

    assert victim.answer(ATTACKS[::-1]) == expected[::-1]
    long, empty, first = victim.answer(["x" * 300, "", ATTACKS[0]])
    assert long == [None] * 3, long
    assert None not in empty, empty
    assert first == expected[0], (first, expected[0])
    print("passed equal seeds", flush=True)

    victim.close()
    assert attack() == alone
    attacker.close()
    print("passed the attacker goes on", flush=True)


if __name__ == "__main__":
    main()
