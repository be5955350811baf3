"""Which prompts a searcher answers, and how far it has come.

The task's training prompts are one endless sequence, the same in every process. Those that fit are numbered 0, 1, 2,
and so on; searcher i of n answers i, i + n, i + 2n, ... Prompts that are too long get no number, so that numbers have
no gaps.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tbactl.errors import TaskError, TbactlError
from tbactl.types import Prompt

# So many prompts in a row that do not fit mean that none will.
_MAX_SKIPPED_IN_A_ROW = 10_000
_PROGRESS_PERIOD = 256  # prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedPrompt:
    """A prompt, its number, and its tokens."""

    position: int
    prompt: Prompt
    token_ids: tuple[int, ...]


class PromptStream:
    """One searcher's share of the training prompts, in order, from a position on.

    Args:
        prompts: the task's whole stream.
        encode: text to token ids.
        max_prompt_tokens: longer prompts, and empty ones, are skipped.
        searcher: i.
        num_searchers: n.
        start: positions before this one are answered already.
        on_progress: called now and then on the way to `start`. Prompts before it must be encoded all the same: only
            those that fit are numbered.
    """

    def __init__(
        self,
        prompts: Iterable[Prompt],
        *,
        encode: Callable[[str], tuple[int, ...]],
        max_prompt_tokens: int,
        searcher: int,
        num_searchers: int,
        start: int = 0,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        assert 0 <= searcher < num_searchers and start >= 0
        self._on_progress = on_progress
        self._usable = self._number_usable(prompts, encode, max_prompt_tokens)
        self._num_searchers = num_searchers
        self.next_position = start + (searcher - start) % num_searchers
        """Of the prompt that `take` returns next."""
        self.num_skipped = 0
        """Prompts of all searchers that did not fit, so far."""

    def take(self) -> StreamedPrompt:
        """The next prompt of this searcher.

        Raises:
            TaskError: the stream has ended, or no prompt fits.
        """
        for streamed in self._usable:
            if streamed.position == self.next_position:
                self.next_position += self._num_searchers
                return streamed
        raise TaskError('the task\'s training prompts have ended; prompts("train") must be an endless stream.')

    def _number_usable(
        self, prompts: Iterable[Prompt], encode: Callable[[str], tuple[int, ...]], max_prompt_tokens: int
    ) -> Iterator[StreamedPrompt]:
        position = in_a_row = 0
        for i, prompt in enumerate(_checked(prompts)):
            if i % _PROGRESS_PERIOD == 0:
                self._on_progress()
            token_ids = encode(prompt.text)
            if 0 < len(token_ids) <= max_prompt_tokens:
                yield StreamedPrompt(position=position, prompt=prompt, token_ids=token_ids)
                position += 1
                in_a_row = 0
                continue
            self.num_skipped += 1
            in_a_row += 1
            if in_a_row == _MAX_SKIPPED_IN_A_ROW:
                raise TaskError(
                    f"{in_a_row:,} prompts in a row are empty or longer than searchers.max_prompt_tokens = "
                    f"{max_prompt_tokens}, the last one has {len(token_ids)} tokens; raise the limit."
                )


def _checked(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    if not isinstance(prompts, Iterable):
        raise TaskError(f'prompts("train") returned {type(prompts).__name__}; it must return an iterator of Prompt.')
    try:
        for prompt in prompts:
            if not isinstance(prompt, Prompt):
                raise TaskError(f'prompts("train") gave {type(prompt).__name__}; it must give Prompt.')
            yield prompt
    except TbactlError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise TaskError(
            f"the task's training prompts cannot be made: {type(error).__name__}: {error} ({place.filename}:"
            f"{place.lineno}, {place.name})."
        ) from error


class Cursor:
    """The lowest position of a searcher that is not answered yet: where it goes on after a crash or a resume.

    Groups finish out of order. Prompts between the cursor and the last one answered are answered again after a crash;
    none is left out.
    """

    def __init__(self, start: int, *, stride: int) -> None:
        self.position = start
        self._stride = stride
        self._answered: set[int] = set()

    def after(self, position: int) -> int:
        """Where the cursor would be once this prompt is answered."""
        end = self.position
        while end == position or end in self._answered:
            end += self._stride
        return end

    def answer(self, position: int) -> None:
        """Note that a prompt is answered, or given up."""
        assert position >= self.position and position not in self._answered, position
        end = self.after(position)
        self._answered.add(position)
        self._answered = {answered for answered in self._answered if answered >= end}
        self.position = end
