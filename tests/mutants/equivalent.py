"""Mutants that do the same as what they were made from, each with the reason."""

TIE = "a tie after the slack was added: a matter of a millionth of a second"

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "pilot/core/ledger.py",
        "wanted = (len(sizes) - 1, sizes.get(len(sizes) - 1, 0)) if sizes else (0, 0)  ->  "
        "wanted = (len(sizes) - 1, sizes.get(len(sizes) - 1, 1)) if sizes else (0, 0)",
    ): "sizes are those of epochs 0, 1, and so on",
    (
        "pilot/core/curve.py",
        "nodes >= self.nodes[last]  ->  nodes > self.nodes[last]",
    ): "the last point is a point, and beyond it its value per node holds",
    (
        "pilot/core/curve.py",
        "RATES = (1e-09, 1000000000000000.0)  ->  RATES = (1e-09, 1000000000000001.0)",
    ): "a limit against nonsense; that it holds where it is, is tested",
    (
        "pilot/core/spec.py",
        "PRIORITY_MAX = 1000000000.0  ->  PRIORITY_MAX = 1000000001.0",
    ): "a limit against nonsense; that it holds where it is, is tested",
    (
        "pilot/train/order.py",
        "self._bijection is None or self._bijection[0] != epoch  ->  "
        "self._bijection is None or self._bijection[1] != epoch",
    ): "it is made anew for each block, and is the same",
    (
        "pilot/core/step_ranges.py",
        "low, high = (max(0, low - 1), high + 1)  ->  low, high = (max(0, low - 1), high + 2)",
    ): "one more range is looked at than can change",
    (
        "pilot/core/errors.py",
        "line = ' '.join(text[:2 * LONGEST].splitlines()) + text[2 * LONGEST:][-LONGEST:]  ->  "
        "line = ' '.join(text[:3 * LONGEST].splitlines()) + text[2 * LONGEST:][-LONGEST:]",
    ): "what is cut away anyway",
    (
        "pilot/core/errors.py",
        "line = ' '.join(text[:2 * LONGEST].splitlines()) + text[2 * LONGEST:][-LONGEST:]  ->  "
        "line = ' '.join(text[:2 * LONGEST].splitlines()) + text[3 * LONGEST:][-LONGEST:]",
    ): "what is cut away anyway",
    (
        "pilot/core/explain.py",
        "other.nodes < now.nodes  ->  other.nodes <= now.nodes",
    ): "terms of as many nodes as there are now are not compared",
    (
        "pilot/core/explain.py",
        "word = 'More' if other.nodes > now.nodes else 'Fewer'  ->  "
        "word = 'More' if other.nodes >= now.nodes else 'Fewer'",
    ): "terms of as many nodes as there are now are not compared",
    (
        "pilot/core/explain.py",
        "nodes = counts.get(candidate.trainer, 0)  ->  nodes = counts.get(candidate.trainer, 1)",
    ): "a plan counts every candidate",
    (
        "pilot/core/explain.py",
        "nodes = counts.get(trainer, 0)  ->  nodes = counts.get(trainer, 1)",
    ): "a plan counts every candidate",
    (
        "pilot/core/spec.py",
        "NODES_MAX = 1000000  ->  NODES_MAX = 1000001",
    ): "a limit against nonsense; that it holds where it is, is tested",
    (
        "pilot/core/assign.py",
        "starved = [t for t in growing if len(t.target) < t.spec.min_nodes]  ->  "
        "starved = [t for t in growing if len(t.target) <= t.spec.min_nodes]",
    ): "who has enough takes nothing in exchange",
    (
        "pilot/core/assign.py",
        "surplus <= 0  ->  surplus < 0",
    ): "of a surplus of no nodes none are taken",
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
        "return fits_s if worth_s <= fits_s < site.walltime_s else None  ->  "
        "return fits_s if worth_s <= fits_s <= site.walltime_s else None",
    ): "short jobs of the usual wall time are the usual jobs",
    (
        "pilot/core/budget.py",
        "used_s >= self.budget_s  ->  used_s > self.budget_s",
    ): TIE,
    (
        "pilot/core/budget.py",
        "used_s < WARNED_AT * self.budget_s or self.warned  ->  used_s <= WARNED_AT * self.budget_s or self.warned",
    ): TIE,
    (
        "pilot/train/order.py",
        "self.size = max(length, 1)  ->  self.size = max(length, 2)",
    ): "a block may be larger than the epoch of one sample that is in it",
}
"""(module, mistake) → why nobody can notice it."""
