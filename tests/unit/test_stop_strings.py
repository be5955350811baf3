from __future__ import annotations

import pytest

from tbactl.engines.stop_strings import completes_stop_string


@pytest.mark.parametrize(
    ("before", "text", "stop_strings", "is_completed"),
    [
        ("ab", "ab\n", ("\n",), True),
        ("ab", "ab.\n\nSo", ("\n",), True),  # anywhere in the token
        ("ab", "abc", ("\n",), False),
        ("a\nb", "a\nbc", ("\n",), False),  # it was complete before, within the first min_new_tokens
        ("a\nb", "a\nb\n", ("\n",), True),
        ("So the Q", "So the Q:", ("\n", "Q:"), True),  # over two tokens
        ("Q:", "Q:a", ("Q:",), False),
        ("", "\n", ("\n",), True),
        ("", "", ("\n",), False),  # a special token has no text
        ("ab\ufffd", "ab\u00e9", ("\u00e9",), True),  # its first byte came with the token before
        ("ab", "ab\n", (), False),
    ],
)
def test_newest_token_completes_a_stop_string(before, text, stop_strings, is_completed) -> None:
    assert completes_stop_string(text, before=before, stop_strings=stop_strings) == is_completed
