"""`tbactl doctor`."""

from __future__ import annotations

import typer

from tbactl.cli.arguments import AsJson, command_app
from tbactl.cli.diagnosis import diagnose
from tbactl.cli.output import plain, print_json

app = command_app()

MARKS = {"ok": "ok  ", "warning": "warn", "error": "FAIL"}


@app.command()
def doctor(as_json: AsJson = False) -> int:
    """Say what of this machine tbactl can use, and what is missing.

    Exit code 1 when something that `tbactl run` needs is missing.
    """
    diagnosis = diagnose()
    if as_json:
        print_json(diagnosis.as_document())
    else:
        for finding in diagnosis.findings:
            typer.echo(plain(f"{MARKS[finding.level]}  {finding.subject:12} {finding.text}"))
            if finding.advice:
                typer.echo(f"{'':18} -> {plain(finding.advice)}")
    return 0 if diagnosis.is_healthy else 1
