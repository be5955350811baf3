"""What all panels share.

Colours mean the same everywhere: green reward, yellow held-out, cyan length, blue age, red what is wrong; grey is what
only frames or names.
"""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

REWARD, HELD_OUT, LENGTH, AGE, WRONG = "green", "yellow", "cyan", "blue", "red"
LABEL, FRAME = "bright_black", "bright_black"


def framed(content: RenderableType, *, title: str, width: int, height: int) -> Panel:
    """A panel in the common frame; `height` includes the frame."""
    return Panel(
        content,
        title=Text(title, style="bold default"),
        title_align="left",
        box=box.ROUNDED,
        border_style=FRAME,
        padding=(0, 1),
        width=width,
        height=height,
    )
