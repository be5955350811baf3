"""Searchers on other machines: each keeps a small process beside the supervisor and runs on a node of a Ray cluster.

    supervisor --starts, watches--> bridge ==Ray==> outpost (an actor) --starts, watches--> searcher
    trainer <--ring, control page-- bridge <======= outpost <--ring, control page, weights-- searcher

The supervisor and the trainer see an ordinary searcher; the searcher sees an ordinary run. Both are told so by copies:
the bridge writes the searcher's records and numbers into the run's shared memory, the outpost writes the run's numbers
and weights into shared memory of its own node. Only `ray_peer.py` knows Ray.
"""
