"""Says before a run what a set-up will do: a discrete-event simulation of searchers, rings, buffer, trainer and syncs.

recipe + hardware.py (given) or measured.py (a finished run) or estimate.py (FLOP/s) -> costs
    -> simulation.py, one for each number of searchers -> sweep.py -> the command line's table, JSON and figure
memory.py: what each device holds; before anything is simulated
"""
