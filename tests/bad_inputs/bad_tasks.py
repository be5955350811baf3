"""Tasks that misbehave, installed as a package would install them: a module and a folder of metadata on the path."""

from __future__ import annotations

from pathlib import Path

MODULE = '''
import math, os, sys, time
from tbactl.errors import TaskError
from tbactl.testing.fake_task import FakeTask
from tbactl.types import Reward


class Base(FakeTask):
    """A task that misbehaves."""


def scoring(name, score):
    def __init__(self):
        FakeTask.__init__(self)
    return type(name, (Base,), {"name": name, "score": score, "__init__": __init__})


def raising(self, prompt, completions):
    raise KeyError("the gold answer of this prompt")


TooFew = scoring("too-few", lambda self, prompt, completions: [Reward(value=1.0)] * (len(completions) + 1))
Nothing = scoring("nothing", lambda self, prompt, completions: None)
Strings = scoring("strings", lambda self, prompt, completions: ["1.0"] * len(completions))
NotANumber = scoring("not-a-number", lambda self, prompt, completions: [Reward(value=math.nan)] * len(completions))
TextValue = scoring("text-value", lambda self, prompt, completions: [Reward(value="1")] * len(completions))
Raises = scoring("raises", raising)
Exits = scoring("exits", lambda self, prompt, completions: sys.exit(3))
NeverReturns = scoring("never-returns", lambda self, prompt, completions: time.sleep(3600))
Dies = scoring("dies", lambda self, prompt, completions: os._exit(9))


def loud(self, prompt, completions):
    os.write(1, b"\\x1b[2Jhello from the task\\n")
    print("hello from the task")
    raise TaskError("this reward has lost its data file /data/gold.jsonl; download it again.")


Loud = scoring("loud", loud)


class RefusesToStart(FakeTask):
    """A task whose constructor fails."""

    def __init__(self):
        raise OSError(2, "No such file or directory", "/data/gold.jsonl")


class RaisesAtStart(FakeTask):
    """A task whose constructor has a mistake."""

    def __init__(self):
        {}["gold"]


class NoPrompts(FakeTask):
    """A task without prompts."""

    name = "no-prompts"

    def __init__(self):
        FakeTask.__init__(self)

    def prompts(self, split, *, seed):
        return iter(())


class PromptsOfText(FakeTask):
    """A task whose prompts are plain strings."""

    name = "prompts-of-text"

    def __init__(self):
        FakeTask.__init__(self)

    def prompts(self, split, *, seed):
        while True:
            yield "what is 1 + 1?"


class PromptsRaise(FakeTask):
    """A task whose stream of prompts breaks."""

    name = "prompts-raise"

    def __init__(self):
        FakeTask.__init__(self)

    def prompts(self, split, *, seed):
        raise ZeroDivisionError("division by zero")
        yield


class Methodless:
    """A class that is no task."""


NUMBER = 42
'''

ENTRY_POINTS = {
    "too-few": "bad_tasks:TooFew",
    "nothing": "bad_tasks:Nothing",
    "strings": "bad_tasks:Strings",
    "not-a-number": "bad_tasks:NotANumber",
    "text-value": "bad_tasks:TextValue",
    "raises": "bad_tasks:Raises",
    "exits": "bad_tasks:Exits",
    "never-returns": "bad_tasks:NeverReturns",
    "dies": "bad_tasks:Dies",
    "loud": "bad_tasks:Loud",
    "refuses-to-start": "bad_tasks:RefusesToStart",
    "raises-at-start": "bad_tasks:RaisesAtStart",
    "no-prompts": "bad_tasks:NoPrompts",
    "prompts-of-text": "bad_tasks:PromptsOfText",
    "prompts-raise": "bad_tasks:PromptsRaise",
    "methodless": "bad_tasks:Methodless",
    "number": "bad_tasks:NUMBER",
    "no-attribute": "bad_tasks:Gone",
    "no-module": "bad_tasks_that_are_gone:Task",
    "broken-import": "bad_tasks_broken:Task",
    "broken-syntax": "bad_tasks_syntax:Task",
    "needs-package": "bad_tasks_needing:Task",
}


def install_bad_tasks(directory: Path) -> Path:
    """Write the package; returns the directory to be put on the path."""
    metadata = directory / "bad_tasks-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-tasks\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {target}" for name, target in ENTRY_POINTS.items())
    (metadata / "entry_points.txt").write_text(f"[tbactl.tasks]\n{lines}\n")
    (directory / "bad_tasks.py").write_text(MODULE)
    (directory / "bad_tasks_broken.py").write_text('raise RuntimeError("this package is for another machine")\n')
    (directory / "bad_tasks_syntax.py").write_text("def broken(:\n")
    (directory / "bad_tasks_needing.py").write_text("import a_package_nobody_has\n")
    return directory


def install_rival(directory: Path) -> None:
    """A second package that claims the name of an installed task."""
    metadata = directory / "rival-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tbactl.tasks]\nmath = rival:Task\n")
