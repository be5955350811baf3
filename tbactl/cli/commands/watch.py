"""`tbactl watch`."""

from __future__ import annotations

from tbactl.cli.arguments import Plain, RunName, command_app, find_run

app = command_app()


@app.command()
def watch(run: RunName = "latest", plain: Plain = False) -> int:
    """Show a run, live or finished, in another terminal.

    Reads the run's control page and files only; ending it (Ctrl-C) leaves the run alone.
    """
    from tbactl.dashboard.watch import watch_run

    return watch_run(find_run(run), plain=plain)
