"""From a document to what the policy reads."""

from __future__ import annotations

from tbactl_preference.options import SLOT, TLDR, PreferenceOptions

PLAIN_TEMPLATE = f"{SLOT}\n\nTL;DR:"
CHAT_TEMPLATE = f"Summarize this text in one short sentence.\n\n{SLOT}"
# Stands for the document while a chat template is rendered: no template trims or escapes it.
_MARK = "DOCUMENT-GOES-HERE"


def prompt_template(options: PreferenceOptions) -> str:
    """The text around the document, with `{document}` in it; in chat style rendered by the tokenizer's chat template.

    Raises:
        ConfigError: `chat_policy` has no tokenizer, or its tokenizer no chat template.
    """
    default = (
        SLOT if options.documents == TLDR else PLAIN_TEMPLATE if options.prompt_style == "plain" else CHAT_TEMPLATE
    )
    template = options.template or default
    return template if options.prompt_style == "plain" else _in_chat(template, policy=options.chat_policy)


def fill(template: str, *, document: str) -> str:
    """The prompt of a document."""
    before, _, after = template.partition(SLOT)
    return f"{before}{document}{after}"


def completion_start(options: PreferenceOptions) -> str:
    """What stands between prompt and summary: a space after a plain prompt, nothing after a chat's header."""
    return " " if options.prompt_style == "plain" else ""


def _in_chat(template: str, *, policy: str) -> str:
    # Only a chat needs a tokenizer, and transformers with it.
    from tbactl.engines.chat_prompt import render_chat

    return render_chat(template.replace(SLOT, _MARK), policy=policy, task="preference").replace(_MARK, SLOT)
