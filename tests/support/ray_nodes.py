"""A Ray cluster on this machine, in a process of its own: prints its address, removes a node for each line of input.

python ray_nodes.py TEMPORARY_DIRECTORY. The first node takes no actors; two more have two CPUs each. A line is the
beginning of a node's id. It ends, with all of Ray's processes, at the end of its input: also when its parent is killed.
"""

from __future__ import annotations

import os
import sys

MEGABYTES_80 = 80 * 2**20
# A killed node is noticed by its connection; one that only has no processor for a while must not be taken for dead.
SYSTEM = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 15}


def main() -> None:
    # Generous: a busy machine takes long to start Ray's servers.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": MEGABYTES_80,
            "_system_config": SYSTEM,
            "temp_dir": sys.argv[1],
        },
    )
    try:
        nodes = [cluster.add_node(wait=False, num_cpus=2, object_store_memory=MEGABYTES_80) for _ in range(2)]
        cluster.wait_for_nodes(timeout=120)
        print(f"address {cluster.address}", flush=True)
        for line in sys.stdin:
            node = next(node for node in nodes if node.node_id.startswith(line.strip()))
            cluster.remove_node(node, allow_graceful=False)
            print("removed", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
