"""The machine: terminals, streams, locales, directories that cannot be written, no home."""

from __future__ import annotations

from pathlib import Path

from tests.bad_inputs.case import CAPACITY, CONFIG, Case, case


def shell(name: str, command: str, exit_code: int, *says: str, **rest: object) -> Case:
    """A case of a new interpreter under a shell."""
    return case(name, command, exit_code, *says, shell=True, **rest)


def _occupied(directory: Path) -> None:
    # Permissions do not stop root; a file where a directory should be stops everybody.
    (directory / "runs").write_text("")


WRONG = "tbactl run ok.toml --dry-run --set trainer.max_steps=-4"
SAID = "trainer.max_steps = -4: must be at least 1"
CASES = [
    shell("stdout-full", "tbactl recipes list >/dev/full", CAPACITY, "No space left on device"),
    shell("stdout-full-as-json", "tbactl recipes list --json >/dev/full", CAPACITY, "No space left on device"),
    shell("stdout-closed", f"{WRONG} >&-", CONFIG, SAID),
    shell("stdin-closed", f"{WRONG} <&-", CONFIG, SAID),
    shell("both-streams-closed", f"{WRONG} >&- <&-", CONFIG, SAID),
    shell("no-home", f"unset HOME; {WRONG}", CONFIG, SAID),
    shell("home-is-gone", WRONG, CONFIG, SAID, environment={"HOME": "/nowhere"}),
    shell(
        "no-environment-at-all",
        f"{WRONG}",
        CONFIG,
        SAID,
        environment={"HOME": None, "PATH": "/usr/bin:/bin", "TERM": None, "LANG": None},
    ),
    shell("terminal-of-20-columns", WRONG, CONFIG, SAID, environment={"COLUMNS": "20", "LINES": "5"}),
    shell("terminal-of-no-columns", WRONG, CONFIG, SAID, environment={"COLUMNS": "0", "LINES": "0"}),
    shell("terminal-of-word-columns", WRONG, CONFIG, SAID, environment={"COLUMNS": "wide"}),
    shell("terminal-dumb", WRONG, CONFIG, SAID, environment={"TERM": "dumb", "NO_COLOR": "1"}),
    shell("terminal-unknown", WRONG, CONFIG, SAID, environment={"TERM": "no-such-terminal"}),
    shell(
        "locale-c",
        f"{WRONG} --set task.kind=m\u00e4th",
        CONFIG,
        SAID,
        "LC_ALL=C.UTF-8",
        environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    shell(
        "locale-latin-1",
        f"{WRONG} --set task.kind=m\u00e4th",
        CONFIG,
        SAID,
        environment={"PYTHONIOENCODING": "latin-1"},
    ),
    shell(
        "locale-ascii-strict",
        "tbactl run 'gsm8k\u03b1'",
        CONFIG,
        "did you mean 'gsm8k'",
        environment={"PYTHONIOENCODING": "ascii:strict"},
    ),
    shell("locale-unknown", WRONG, CONFIG, SAID, environment={"LC_ALL": "xx_YY.nothing"}),
    shell("argument-not-utf-8", "tbactl run $'\\xff\\xfe'", CONFIG, "there is no recipe"),
    shell("directory-deleted", f"mkdir d; cp ok.toml d; cd d; rm -r ../d; {WRONG}", CONFIG, "ok.toml"),
    shell("warnings-are-errors", WRONG, CONFIG, SAID, environment={"PYTHONWARNINGS": "error"}),
    shell("hash-seed", WRONG, CONFIG, SAID, environment={"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "2"}),
    shell("runs-is-a-file", "tbactl run ok.toml", CONFIG, "runs_dir", "cannot be used", prepare=_occupied),
]
