"""The one module that knows Ray: an outpost as an actor, weights as an object that is put once for all of them.

Ray moves bytes (messages) and arrays of bytes (files); what is in them Ray does not see. It pickles its own handles and
exceptions, nothing of ours. Actors belong to the bridge that made them: when it ends, whatever ends it, Ray ends them,
and the kernel ends the searcher with its actor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tbactl.cluster.messages import Answer, Done, Failure, Order, Prepared, Report, Request, decoded, encoded
from tbactl.cluster.outpost import Outpost
from tbactl.config.layout import ProcessConfig
from tbactl.errors import (
    CapacityError,
    CheckpointError,
    ChildFailedError,
    ConfigError,
    TaskError,
    TbactlError,
    is_out_of_space,
)
from tbactl.terminal import printable
from tbactl.weight_sync.published import PublishedWeights, weights_path

logger = logging.getLogger(__name__)

FAILURES = {kind.exit_code: kind for kind in (ConfigError, TaskError, ChildFailedError, CapacityError, CheckpointError)}

# Its annotations know neither `concurrency_groups` nor what a decorated class can do.
remote: Any = ray.remote

# Of a time limit of the supervisor's: so that the bridge, which knows more, speaks first.
SHARE = 0.9
CLOSE_S = 1.5
CONNECT_S = 10.0
VERSIONS_KEPT = 2


def _answered(act: Callable[[], Answer | None]) -> bytes:
    try:
        return encoded(act() or Done())
    except TbactlError as error:
        return encoded(Failure(exit_code=error.exit_code, message=str(error)))
    except OSError as error:
        kind = CapacityError if is_out_of_space(error) else ChildFailedError
        return encoded(Failure(exit_code=kind.exit_code, message=f"{type(error).__name__}: {error}"))


@remote(max_restarts=0, concurrency_groups={"weights": 1})
class _Station:
    """An outpost in an actor. Weights are taken in beside the exchanges: fetching them may last."""

    _outpost: Outpost

    def prepare(self, order: bytes) -> bytes:
        def act() -> Prepared:
            node = f"node {ray.get_runtime_context().get_node_id()[:12]} ({socket.gethostname()})"
            self._outpost = Outpost(decoded(order, Order))
            return Prepared(node=node, has_policy=self._outpost.policy.directory is not None)

        return _answered(act)

    def take_policy_file(self, name: str, content: np.ndarray) -> bytes:
        return _answered(lambda: self._outpost.policy.take(name, content.data))

    def launch(self) -> bytes:
        return _answered(self._outpost.launch)

    def exchange(self, request: bytes) -> bytes:
        return _answered(lambda: self._outpost.exchange(decoded(request, Request)))

    @ray.method(concurrency_group="weights")
    def take_weights(self, description: bytes, depot: Any, limit_s: float) -> bytes:
        def act() -> None:
            published = msgspec.msgpack.decode(description, type=PublishedWeights)
            references = ray.get(depot.references.remote(published.version), timeout=limit_s)
            for content in ray.get(references, timeout=limit_s):
                self._outpost.take_weights(published, content.data)

        return _answered(act)

    def close(self) -> bytes:
        return _answered(self._outpost.close)


@remote(num_cpus=0, max_restarts=0)
class _Depot:
    """Puts each version into the object store once, whoever asks first; the older ones are forgotten, and so freed."""

    def __init__(self, weights_directory: str) -> None:
        self._directory = Path(weights_directory)
        self._references: dict[int, ray.ObjectRef] = {}

    def references(self, version: int) -> list[ray.ObjectRef]:
        """One, of the file's bytes; none where it has been removed."""
        if version not in self._references:
            try:
                content = np.asarray(np.memmap(weights_path(self._directory, version), mode="r"))
            except FileNotFoundError:
                return []
            self._references[version] = ray.put(content)
            for old in sorted(self._references)[:-VERSIONS_KEPT]:
                del self._references[old]
        return [self._references[version]]


class RayPeer:
    """An outpost on some node of a cluster. Implements `Peer`.

    Args:
        config: of the searcher.
        order: what the outpost is to start.
        started_s: when the supervisor started the bridge, on the monotonic clock.
        is_first: this searcher starts for the first time: a cluster that is not there is then the user's mistake.

    Raises:
        ConfigError: there is no such cluster.
        TbactlError: no node has room, or the one found cannot start the searcher.
    """

    def __init__(self, config: ProcessConfig, order: Order, *, started_s: float, is_first: bool) -> None:
        self._config = config
        supervision = config.run.supervision
        self._start_until_s = started_s + SHARE * supervision.start_timeout_s
        self._answer_s = SHARE * supervision.heartbeat_timeout_s
        self._weights_s = SHARE * supervision.acknowledge_timeout_s
        self.node = "a node to be found"
        self._sending: dict[int, ray.ObjectRef] = {}  # the call that is under way, by version
        self._join(is_first=is_first)
        self._station = self._new_station()
        try:
            self._depot = self._find_depot()
            self._start(order)
        except BaseException:
            self.close()
            raise

    def exchange(self, request: Request) -> Report:
        answer = self._ask(self._station.exchange, encoded(request), limit_s=self._answer_s)
        assert isinstance(answer, Report)
        return answer

    def send_weights(self, published: PublishedWeights) -> bool:
        version = published.version
        try:
            if version not in self._sending:
                description = msgspec.msgpack.encode(published)
                self._sending = {version: self._station.take_weights.remote(description, self._depot, self._weights_s)}
            call = self._sending[version]
            if not ray.wait([call], timeout=0)[0]:
                return False
            self._sending = {}
            self._checked(ray.get(call))
        except RayError as error:
            if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
                raise self._lost(error) from error  # our own code's
            # The depot went with the bridge that had made it. If the node is lost, the next exchange says so.
            logger.warning("weights version=%d are sent again: %s", version, _first_line(error))
            self._sending = {}
            self._depot = self._find_depot()
            return False
        return True

    def close(self) -> None:
        """End the searcher and leave the cluster; at most a moment."""
        with contextlib.suppress(RayError):
            ray.get(self._station.close.remote(), timeout=CLOSE_S)
        ray.shutdown()

    @property
    def _start_left_s(self) -> float:
        return max(1.0, self._start_until_s - time.monotonic())

    def _join(self, *, is_first: bool) -> None:
        address = self._config.run.searchers.ray_address
        try:
            _check_answers(address)
            ray.init(
                address=address,
                namespace=self._config.shm.root.name,
                log_to_driver=False,
                configure_logging=False,
            )
        except (OSError, RuntimeError, ValueError, RayError) as error:
            kind = ConfigError if is_first else ChildFailedError
            raise kind(
                f"searchers.ray_address = '{address}': {_first_line(error)} This machine must be a node of the "
                f"cluster: `ray start --head --num-cpus=0 --num-gpus=0` here, `ray start --address=THIS_HOST:6379` on "
                f"the others."
            ) from None

    def _new_station(self) -> Any:
        resources = dict(self._config.run.searchers.ray_resources)
        cpus, gpus = resources.pop("CPU", 0), resources.pop("GPU", 0)
        return _Station.options(
            num_cpus=cpus, num_gpus=gpus, resources=resources, scheduling_strategy="SPREAD"
        ).remote()

    def _find_depot(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = _Depot.options(name="weights", get_if_exists=True, scheduling_strategy=here)
        try:
            return options.remote(str(self._config.shm.weights))
        except (RayError, ValueError) as error:  # ValueError: another bridge's has ended while Ray looked for it
            raise self._lost(error) from error

    def _start(self, order: Order) -> None:
        if not ray.wait([self._station.__ray_ready__.remote()], timeout=self._start_left_s)[0]:
            raise ChildFailedError(
                f"no node of the Ray cluster has had room for searchers.ray_resources = "
                f"{self._config.run.searchers.ray_resources}; there is {_shown(ray.cluster_resources())}, free is "
                f"{_shown(ray.available_resources())} (waited for most of supervision.start_timeout_s = "
                f"{self._config.run.supervision.start_timeout_s:g})."
            )
        prepared = self._ask(self._station.prepare, encoded(order), limit_s=self._start_left_s)
        assert isinstance(prepared, Prepared)
        self.node = prepared.node
        logger.info("placed on %s", self.node)
        if not prepared.has_policy:
            logger.info("sending the policy, %d files", len(order.policy))
            for name in order.policy:
                file = self._config.policy_directory / name
                content = np.asarray(np.memmap(file, mode="r")) if order.policy[name] else np.empty(0, np.uint8)
                self._ask(self._station.take_policy_file, name, content, limit_s=self._start_left_s)
        self._ask(self._station.launch, limit_s=self._start_left_s)

    def _ask(self, method: Any, *arguments: object, limit_s: float) -> Answer:
        try:
            return self._checked(ray.get(method.remote(*arguments), timeout=limit_s))
        except GetTimeoutError:
            raise ChildFailedError(f"{self.node} has not answered for {limit_s:.0f} s.") from None
        except RayError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> ChildFailedError:
        if isinstance(error, RayTaskError):
            return ChildFailedError(f"{self.node}: {type(error.cause).__name__}: {error.cause}")
        return ChildFailedError(f"lost {self.node}: {_first_line(error)}")

    def _checked(self, data: bytes) -> Answer:
        answer = msgspec.msgpack.decode(data, type=Answer)
        if isinstance(answer, Failure):
            raise FAILURES.get(answer.exit_code, ChildFailedError)(f"{self.node}: {answer.message}")
        return answer


def _check_answers(address: str) -> None:
    """Raise OSError where nobody listens at `HOST:PORT`: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


def _first_line(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")


def _shown(resources: Mapping[str, float]) -> dict[str, float]:
    """Without the names of nodes and Ray's own objects."""
    return {name: amount for name, amount in sorted(resources.items()) if ":" not in name and "_" not in name}
