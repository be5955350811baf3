"""`tbactl stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from tbactl.cli.arguments import RunName, command_app, find_run

app = command_app()


@app.command()
def stop(
    run: RunName = "latest",
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds to wait for the end of the run; 0 does not wait.")
    ] = 60.0,
) -> int:
    """Ask a run to stop: it ends with a checkpoint.

    It ends as after its last step. `tbactl run --resume RUN` continues it later.
    """
    from tbactl.supervision.stop import request_stop

    return request_stop(find_run(run), timeout_s=timeout_s)
