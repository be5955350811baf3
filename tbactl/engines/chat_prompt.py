"""A user's message in the chat template of a tokenizer."""

from __future__ import annotations

from transformers import AutoTokenizer

from tbactl.checkpoints.resolve import resolved_policy
from tbactl.errors import ConfigError


def render_chat(message: str, *, policy: str, task: str) -> str:
    """The conversation as text up to where the assistant's answer begins, special tokens written out.

    Args:
        message: of the user.
        policy: the task's option `chat_policy`: directory, hub name or `package:NAME` of the tokenizer.
        task: kind of the task that a policy `task:NAME` refers to.

    Raises:
        ConfigError: there is no tokenizer, or it has no chat template.
    """
    with resolved_policy(policy, task=task) as directory:
        try:
            tokenizer = AutoTokenizer.from_pretrained(directory)
        except (OSError, ValueError) as error:
            raise ConfigError(f"task.options.chat_policy = '{policy}': cannot load its tokenizer: {error}") from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"task.options.chat_policy = '{policy}': its tokenizer has no chat template; use prompt_style = 'plain'."
        )
    conversation = [{"role": "user", "content": message}]
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))
