"""`python -m tbactl_redteam.victims.engine_worker DESCRIPTOR`: the victim's process, started by `victim_process.py`.

It dies with its parent, works on its parent's cores and answers until its socket ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tbactl.checkpoints.resolve import resolved_policy
from tbactl.config.engine import EngineConfig
from tbactl.errors import ConfigError, TbactlError
from tbactl.ipc.child import bind_to_cores, die_with_parent, run_and_leave
from tbactl.protocols import Engine, GenerationRequest
from tbactl.registry import load
from tbactl.types import SamplingParams
from tbactl_redteam.victims.channel import Answered, Ask, Channel, Done, Failed, Ready, Start
from tbactl_redteam.victims.options import VictimOptions
from tbactl_redteam.victims.prompt_template import conversation, fill, without_special_tokens
from tbactl_redteam.victims.seeds import answer_seed

logger = logging.getLogger(__name__)

Encode = Callable[[str], tuple[int, ...]]


class EngineAnswers:
    """A model on an engine, asked through its prompt template.

    Args:
        engine: holds the victim's weights, and serves nobody else.
        encode: from an attack to the tokens of the whole prompt.
        options: how to sample.
    """

    def __init__(self, engine: Engine, *, encode: Encode, options: VictimOptions) -> None:
        self._engine = engine
        self._encode = encode
        self._options = options
        self._sampling = SamplingParams(
            max_new_tokens=options.max_new_tokens, temperature=options.temperature, top_p=options.top_p
        )

    def answers(self, attacks: Sequence[str]) -> Iterator[Answered]:
        """Every answer to every attack, as they are finished; all are asked for at once."""
        # Nothing is shared with earlier calls: cached keys and values change the arithmetic in the last bits, and equal
        # seeds must give equal answers wherever a call stands in the stream.
        self._engine.policy_version += 1
        places: dict[str, tuple[int, int]] = {}
        for i, attack in enumerate(attacks):
            token_ids = self._encode(attack)
            if len(token_ids) > self._options.max_prompt_tokens:
                problem = (
                    f"the prompt has {len(token_ids)} tokens, max_prompt_tokens = {self._options.max_prompt_tokens}"
                )
                yield from (Answered(i, k, None, problem) for k in range(self._options.num_answers))
                continue
            for k in range(self._options.num_answers):
                places[f"{i}-{k}"] = (i, k)
                self._engine.submit(self._request(f"{i}-{k}", token_ids, seed=self._seed(attack, k)))
        while places:
            for finished in self._engine.step():
                i, k = places.pop(finished.request_id)
                text = None if finished.completion is None else self._text(finished.completion.text)
                yield Answered(i, k, text, finished.error or "")

    def _request(self, request_id: str, token_ids: tuple[int, ...], *, seed: int | None) -> GenerationRequest:
        return GenerationRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=self._sampling, seed=seed)

    def _seed(self, attack: str, number: int) -> int | None:
        if self._options.seed is None:
            return None
        return answer_seed(self._options.seed, attack=attack, number=number)

    def _text(self, text: str) -> str:
        return text.strip()[: self._options.max_answer_characters]


def main() -> int:
    """Serve the parent until its end of the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    die_with_parent()
    # What libraries print must not get into a result that the parent writes to standard output.
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    start = channel.receive()
    if start is None:
        return 0
    assert isinstance(start, Start)
    bind_to_cores(start.cores)  # before any library counts them
    options = VictimOptions.model_validate_json(start.options)
    with contextlib.ExitStack() as stack:
        try:
            policy = stack.enter_context(resolved_policy(options.policy, task="redteam"))
            victim = load_answers(options, policy=policy)
        except TbactlError as error:
            channel.send(Failed(str(error)))
            return error.exit_code
        except Exception as error:  # whatever a library raises when a model does not load
            logger.exception("the victim cannot be loaded")
            channel.send(Failed(f"{type(error).__name__}: {error}"))
            return ConfigError.exit_code
        channel.send(Ready())
        _serve(channel, victim)
    return 0


def load_answers(options: VictimOptions, *, policy: Path) -> EngineAnswers:
    """Load model, engine and template.

    Raises:
        ConfigError: one of them cannot be loaded.
    """
    config = EngineConfig(
        policy_directory=policy,
        dtype=options.dtype,
        seed=secrets.randbelow(2**31) if options.seed is None else options.seed,
        max_model_tokens=options.max_prompt_tokens + options.max_new_tokens,
        max_concurrent_sequences=options.max_concurrent_sequences,
        trust_remote_code=options.trust_remote_code,
        options=options.engine_options,
    )
    encoder = prompt_encoder(options, config=config)  # first: what it finds wrong need not wait for the weights
    engine: Engine = load("tbactl.engines", options.engine)(config)
    return EngineAnswers(engine, encode=lambda attack: encoder(engine, attack), options=options)


def prompt_encoder(options: VictimOptions, *, config: EngineConfig) -> Callable[[Engine, str], tuple[int, ...]]:
    """From an engine and an attack to the tokens of the victim's prompt.

    Raises:
        ConfigError: a chat is asked for, and the model has no chat template.
    """
    directory = config.policy_directory
    if options.prompt_style == "plain" and directory.is_dir() and not any(directory.glob("tokenizer*")):
        # An engine that reads text in a way of its own has no special tokens.
        return lambda engine, attack: engine.encode(fill(options.template, attack=attack))
    # Needs torch and transformers.
    from tbactl.engines.policy_files import load_tokenizer

    tokenizer: Any = load_tokenizer(config)
    special_tokens = sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()})
    if options.prompt_style == "chat" and not tokenizer.chat_template:
        raise ConfigError("its tokenizer has no chat template; use prompt_style = 'plain'")

    def encode(engine: Engine, attack: str) -> tuple[int, ...]:
        text = fill(options.template, attack=without_special_tokens(attack, special_tokens))
        if options.prompt_style == "plain":
            return engine.encode(text)
        messages = conversation(text, system_prompt=options.system_prompt)
        # As tokens, not as text: an engine would add the special tokens at the beginning once more.
        return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    return encode


def _serve(channel: Channel, victim: EngineAnswers) -> None:
    with contextlib.suppress(ConnectionError):  # the parent has closed its end
        while (asked := channel.receive()) is not None:
            assert isinstance(asked, Ask)
            for answered in victim.answers(asked.attacks):
                channel.send(answered)
            channel.send(Done())


if __name__ == "__main__":
    run_and_leave(main)
