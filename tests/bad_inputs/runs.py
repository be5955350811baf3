"""Run directories and checkpoints: missing, damaged, of somebody else, hostile."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad_inputs.case import CHECKPOINT, CONFIG, Case, case

RUN = "runs/r"
NEWEST, OLDER = "checkpoints/step_000004", "checkpoints/step_000002"
RESUME = "run --resume r --set trainer.max_steps=8"
# Where `latest` of a run should not lead.
OUTSIDE = {
    "is-other-directory": "../../evil/foo",
    "is-checkpoint-of-another": "../../evil/step_000099",
    "is-in-a-circle": "latest",
    "leads-nowhere": "step_000123",
}


class Bomb:
    """What an attacker would put into a pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


def damaged(name: str, command: str, exit_code: int, damage: Callable[[Path], object], *says: str) -> Case:
    """A case whose run has been damaged."""
    return case(name, command, exit_code, *says, prepare=lambda directory: damage(directory / RUN), has_run=True)


def both(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """The same to all checkpoints of a run."""

    def change_all(run: Path) -> None:
        for checkpoint in sorted((run / "checkpoints").glob("step_*")):
            change(checkpoint)

    return change_all


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Replace a file."""

    def written(root: Path) -> None:
        path = root / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return written


def edit(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change a JSON file."""

    def edited(root: Path) -> None:
        document = json.loads((root / name).read_text())
        change(document)
        (root / name).write_text(json.dumps(document))

    return edited


def cut(name: str) -> Callable[[Path], None]:
    """Cut a file in half."""
    return lambda root: os.truncate(root / name, (root / name).stat().st_size // 2)


def flip(name: str) -> Callable[[Path], None]:
    """Change one byte of a file."""

    def flipped(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[len(data) // 2] ^= 0x40
        (root / name).write_bytes(bytes(data))

    return flipped


def _largest(pattern: str) -> Callable[[Path], str]:
    def name(root: Path) -> str:
        return str(max(root.glob(pattern), key=lambda path: path.stat().st_size).relative_to(root))

    return name


def _first_file(change: Callable[[str], Callable[[Path], object]], pattern: str) -> Callable[[Path], object]:
    return lambda root: change(_largest(pattern)(root))(root)


def _entry(path: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        document["files"].append({"path": path, "size_bytes": 3, "blake2b": "00"})

    return change


def _linked(name: str) -> Callable[[Path], None]:
    """Move a directory of a checkpoint out of it, and leave a link."""

    def linked(checkpoint: Path) -> None:
        moved = checkpoint.parents[1] / f"moved-{checkpoint.name}"
        (checkpoint / name).rename(moved)
        (checkpoint / name).symlink_to(moved)

    return linked


def _latest(target: str) -> Callable[[Path], None]:
    """Let `latest` lead to `target`; outside of the run two checkpoints lie ready, one by name only."""

    def pointed(run: Path) -> None:
        for name in ("foo", "step_000099"):
            shutil.copytree(run / NEWEST, run.parent / "evil" / name)
        (run / "checkpoints/latest").unlink()
        (run / "checkpoints/latest").symlink_to(target)

    return pointed


def _only_latest(target: str) -> Callable[[Path], None]:
    """The same where no checkpoint of the run's own is complete."""
    return lambda run: (_latest(target)(run), both(_remove("manifest.json"))(run))[0]


def _remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


NAMES = [
    case("run-missing", "buffer show nowhere", CONFIG, "there is no run 'nowhere'", "newest runs: none"),
    case("run-latest-of-none", "watch latest", CONFIG, "there is no run 'latest'"),
    case("run-empty-name", "watch ''", CONFIG, "there is no run ''"),
    case("run-name-of-parent", "stop ..", CONFIG, "there is no run '..'"),
    case("run-name-of-5000-letters", f"watch {'r' * 5000}", CONFIG, "File name too long", "characters"),
    case("run-is-file", "watch ok.toml", CONFIG, "there is no run 'ok.toml'"),
    case("run-of-other-user", "watch ~nobody-here/run", CONFIG, "there is no run"),
    case("run-of-other-user-to-buffer", "buffer show ~nobody-here/run", CONFIG, "there is no run"),
    case("run-misspelt", "watch runs/q", CONFIG, "there is no run 'runs/q'", "newest runs: r", has_run=True),
    case("stop-of-finished-run", "stop r", CONFIG, "is not running (finished)", has_run=True),
    case("resume-missing", "run --resume nowhere", CONFIG, "there is no run 'nowhere'"),
    case("resume-of-finished-run", "run --resume r", CONFIG, "trainer.max_steps", "--set", has_run=True),
    case("resume-with-fixed-change", f"{RESUME} --set seed=9", CONFIG, "seed is fixed", has_run=True),
    case("resume-with-unknown-key", f"{RESUME} --set trainer.steps=9", CONFIG, "no such setting", has_run=True),
    case("export-over-file", "buffer export r ok.toml", CONFIG, "ok.toml exists", "--force", has_run=True),
    case("export-into-nowhere", "buffer export r no/out.parquet", CONFIG, "there is no directory no", has_run=True),
    case("export-onto-directory", "buffer export r runs --force", CONFIG, "runs", has_run=True),
    case(
        "export-onto-device",
        "buffer export r pipe --force",
        CONFIG,
        "pipe is a device",
        has_run=True,
        prepare=lambda directory: os.mkfifo(directory / "pipe"),
    ),
]
RECORDS = [
    damaged("record-empty", "watch r", CONFIG, write("run.json", ""), "run.json", "damaged"),
    damaged("record-binary", "watch r", CONFIG, write("run.json", b"\xff\xfe\0"), "run.json", "damaged"),
    damaged("record-list", "stop r", CONFIG, write("run.json", "[]"), "run.json", "damaged"),
    damaged("record-nested", "stop r", CONFIG, write("run.json", "[" * 100_000), "run.json"),
    damaged("record-of-newer-tbactl", "watch r", CONFIG, edit("run.json", lambda d: d.update(new=1)), "version"),
    damaged("record-pid-text", "stop r", CONFIG, edit("run.json", lambda d: d.update(pid="1")), "stop"),
    damaged(
        # No such process group can exist, should the number ever be believed.
        "record-pid-negative",
        "stop r",
        CONFIG,
        edit("run.json", lambda d: d.update(pid=-(2**30), outcome="running")),
        "run.json is damaged",
    ),
    damaged(
        "record-is-directory",
        "watch runs/r",
        CONFIG,
        lambda r: ((r / "run.json").unlink(), (r / "run.json").mkdir()),
        "runs/r",
    ),
    damaged("config-missing", "watch r", CONFIG, _remove("config/resolved.json"), "resolved.json"),
    damaged("config-damaged", "watch r", CONFIG, write("config/resolved.json", "{}"), "resolved.json"),
    damaged("config-missing-at-resume", RESUME, CHECKPOINT, _remove("config/resolved.json"), "resolved.json"),
    damaged("config-damaged-at-eval", "eval r", CHECKPOINT, write("config/resolved.json", "{}"), "resolved.json"),
    damaged("config-damaged-at-resume", RESUME, CHECKPOINT, cut("config/resolved.json"), "resolved.json"),
    damaged(
        "config-of-newer-tbactl",
        RESUME,
        CHECKPOINT,
        edit("config/resolved.json", lambda d: d["trainer"].update(warp=9)),
        "resolved.json",
    ),
]
CHECKPOINTS = [
    damaged(
        "no-checkpoints",
        "buffer show r",
        CHECKPOINT,
        both(lambda c: c.rename(c.with_name("gone" + c.name))),
        "no checkpoint",
    ),
    damaged("no-checkpoints-at-resume", RESUME, CHECKPOINT, both(_remove("manifest.json")), "no complete checkpoint"),
    damaged(
        "manifest-empty", "buffer show r", CHECKPOINT, both(write("manifest.json", "")), "manifest.json", "damaged"
    ),
    damaged(
        "manifest-list", "buffer show r", CHECKPOINT, both(write("manifest.json", "[]")), "manifest.json", "damaged"
    ),
    damaged("manifest-binary", "buffer show r", CHECKPOINT, both(write("manifest.json", b"\xff")), "manifest.json"),
    damaged(
        "manifest-nested", "buffer show r", CHECKPOINT, both(write("manifest.json", "[" * 100_000)), "manifest.json"
    ),
    damaged(
        "manifest-of-newer-layout",
        "buffer show r",
        CHECKPOINT,
        both(edit("manifest.json", lambda d: d.update(layout_version=99))),
        "layout 99",
        "this tbactl reads 1",
    ),
    damaged(
        "manifest-lists-system-file",
        "buffer show r",
        CHECKPOINT,
        both(edit("manifest.json", _entry("replay/../../../../../../../etc/passwd"))),
        "etc/passwd",
    ),
    damaged(
        "manifest-lists-absolute-file",
        "buffer show r",
        CHECKPOINT,
        both(edit("manifest.json", _entry("/etc/passwd"))),
        "/etc/passwd",
    ),
    damaged(
        "manifest-lists-no-file",
        "buffer show r",
        CHECKPOINT,
        both(edit("manifest.json", lambda d: d.update(files=[]))),
        "replay",
    ),
    damaged("state-missing", "buffer show r", CHECKPOINT, both(_remove("trainer_state.json")), "trainer_state.json"),
    damaged(
        "state-of-newer-layout",
        "buffer show r",
        CHECKPOINT,
        both(edit("trainer_state.json", lambda d: d.update(layout_version=99))),
        "layout 99",
    ),
    damaged(
        "state-wrong-type",
        "buffer show r",
        CHECKPOINT,
        both(edit("trainer_state.json", lambda d: d.update(policy_version="x"))),
        "trainer_state.json",
    ),
    damaged("buffer-file-cut", "buffer show r", CHECKPOINT, both(_first_file(cut, "replay/*")), "replay", "damaged"),
    damaged("buffer-file-flipped", "buffer show r", CHECKPOINT, both(_first_file(flip, "replay/*")), "checksum"),
    damaged("buffer-file-gone", "buffer show r", CHECKPOINT, both(_first_file(_remove, "replay/*")), "missing"),
    damaged(
        "buffer-is-pickle",
        "buffer show r",
        CHECKPOINT,
        both(_first_file(lambda n: write(n, pickle.dumps(Bomb())), "replay/*")),
        "replay",
        "damaged",
    ),
    damaged("buffer-is-link", "buffer show r", CHECKPOINT, both(_linked("replay")), "leads out of the checkpoint"),
    damaged("learner-is-link-at-resume", RESUME, CHECKPOINT, both(_linked("learner")), "leads out of the checkpoint"),
    *(
        damaged(f"latest-{name}", RESUME, CHECKPOINT, _only_latest(target), "no complete checkpoint", "(2 incomplete)")
        for name, target in OUTSIDE.items()
    ),
    *(
        damaged(f"latest-{name}-beside-good-ones", "run --resume r", CONFIG, _latest(target), "is of step 4", "--set")
        for name, target in OUTSIDE.items()
    ),
    damaged(
        "lock-is-link",
        RESUME,
        CONFIG,
        lambda r: ((r / ".lock").unlink(), (r / ".lock").symlink_to("../../ok.toml")),
        ".lock",
        "remove it",
    ),
    damaged("learner-cut-at-resume", RESUME, CHECKPOINT, both(_first_file(cut, "learner/*")), "learner", "damaged"),
    damaged(
        "learner-is-pickle",
        RESUME,
        CHECKPOINT,
        both(_first_file(lambda n: write(n, pickle.dumps(Bomb())), "learner/*")),
        "damaged",
    ),
    damaged(
        "policy-cut-at-eval",
        "eval r --engine fake",
        CHECKPOINT,
        both(_first_file(cut, "policy/*")),
        "policy",
        "damaged",
    ),
    damaged(
        "policy-flipped-at-eval",
        f"eval {RUN}/{NEWEST} --engine fake",
        CHECKPOINT,
        both(_first_file(flip, "policy/*")),
        "checksum",
    ),
    case(
        "eval-of-empty-directory",
        "eval ./d --task fake --engine fake",
        CHECKPOINT,
        "d",
        "holds no policy",
        prepare=lambda d: (d / "d").mkdir(),
    ),
    case("eval-of-file", "eval ./ok.toml --task fake --engine fake", CONFIG, "ok.toml", "no such directory"),
    case(
        "eval-of-run-without-checkpoint",
        "eval r --engine fake",
        CHECKPOINT,
        "r",
        has_run=True,
        prepare=lambda d: both(lambda c: c.rename(c.with_name("gone" + c.name)))(d / RUN),
    ),
    case("frontier-twice", "eval --frontier r r", CONFIG, "named twice", has_run=True),
    case("frontier-of-task-without", "eval --frontier r", CONFIG, "draws no frontier", has_run=True),
    case("eval-of-two", "eval r r", CONFIG, "--frontier", has_run=True),
    case("eval-of-other-task", "eval r --task maths", CONFIG, "did you mean 'math'", has_run=True),
]
CASES = [*NAMES, *RECORDS, *CHECKPOINTS]
