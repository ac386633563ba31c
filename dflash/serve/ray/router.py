"""Prefix affinity as a request router of Ray Serve."""

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from dflash.serve.routing.call import RoutedCall, tag_of
from dflash.serve.routing.prefix_affinity import PrefixAffinity


class AffinityRouter(RequestRouter):
    """Routes each `RoutedCall` by `PrefixAffinity`. Ray makes one for each process that holds a handle.

    The load of a replica is the number of its open requests: those that this process sent, corrected to those of all
    processes whenever the replica accepts a request.
    """

    def initialize_state(self, **settings: Any) -> None:
        """Take the parameters of `PrefixAffinity`. Called by Ray once."""
        self._rule = PrefixAffinity(**settings)
        self._loads: Counter[str] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order in which the call is offered to them. Called by Ray."""
        candidates = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        call = pending_request.args[0] if pending_request is not None and pending_request.args else None
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # wait between rounds in which all replicas refuse
        if not isinstance(call, RoutedCall):
            return [list(candidates.values())]
        order = self._rule.rank(call.hints, {name: self._loads[name] for name in candidates})
        order.sort(key=lambda name: (name in call.excluded, tag_of(name) != call.owner))
        return [[candidates[name]] for name in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """Remember the prompt of a call that a replica has accepted. Called by Ray."""
        super().on_request_routed(pending_request, replica_id, result)
        if pending_request.args and isinstance(pending_request.args[0], RoutedCall):
            self._rule.note(pending_request.args[0].hints, replica_id.unique_id)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request. Called by Ray."""
        super().on_send_request(replica_id)
        self._loads[replica_id.unique_id] += 1

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """Take the number of open requests that the replica itself reports. Called by Ray."""
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        self._loads[replica_id.unique_id] = num_ongoing_requests

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        """Count the end of a request. Called by Ray."""
        super().decrement_queue_len_cache(replica_id)
        self._loads[replica_id.unique_id] = max(self._loads[replica_id.unique_id] - 1, 0)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica. Called by Ray."""
        super().on_replica_actor_died(replica_id)
        self._forget(replica_id.unique_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the set of running replicas. Called by Ray when one starts or ends."""
        gone = set(self._loads) - {replica.replica_id.unique_id for replica in replicas}
        super().update_replicas(replicas)
        for name in gone:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._rule.forget(name)
        self._loads.pop(name, None)
