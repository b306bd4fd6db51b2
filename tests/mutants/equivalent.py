"""Equivalent mutants by module: they behave like the original, each with the reason."""

TIE = "a tie after the slack was added: a matter of a millionth of a second"
LIMIT = "a limit against nonsense; that it holds where it is, is tested"
NEVER = "no event comes there, which mypy checks"

_BY_MODULE: dict[str, dict[str, str]] = {
    "pilot/core/trainer/actions.py": {
        (
            "trainer.outcome, trainer.reason, trainer.held, trainer.stops = (Outcome.STOPPED, trainer.held, '', "
            "False)  ->  "
            "trainer.outcome, trainer.reason, trainer.held, trainer.stops = (Outcome.STOPPED, trainer.held, '', True)"
        ): "nothing asks that of a trainer that has ended, and reopening sets it",
    },
    "pilot/core/plan/assign.py": {
        "False  ->  True": "without an ending no node ends before it",
        (
            "return [t for t in self.growing if self.missing(t) > 0 and len(t.target) < t.spec.min_nodes]  ->  "
            "return [t for t in self.growing if self.missing(t) > 0 and len(t.target) <= t.spec.min_nodes]"
        ): "who has enough takes nothing in exchange",
        "surplus <= 0  ->  surplus < 0": "of a surplus of no nodes none are taken",
        (
            "self.growing = [t for t in self.changed if self.missing(t) > 0]  ->  "
            "self.growing = [t for t in self.changed if self.missing(t) >= 0]"
        ): "who keeps as many nodes is not among the changed",
        "break  ->  continue": "what keeps one node of a donor keeps all that follow",
        (
            "_hand_out(self.pool, trainer, [node], 1)  ->  _hand_out(self.pool, trainer, [node], 2)"
        ): "there is one to hand out",
        (
            "_hand_out(self.pool, donor, [taken], 1)  ->  _hand_out(self.pool, donor, [taken], 2)"
        ): "there is one to hand out",
    },
    "pilot/history/ledger.py": {
        (
            "wanted = (len(sizes) - 1, sizes.get(len(sizes) - 1, 0)) if sizes else (0, 0)  ->  "
            "wanted = (len(sizes) - 1, sizes.get(len(sizes) - 1, 1)) if sizes else (0, 0)"
        ): "sizes are those of epochs 0, 1, and so on",
        (
            "low, high = (max(0, low - 1), high + 1)  ->  low, high = (max(0, low - 1), high + 2)"
        ): "one more range is looked at than can change",
        (
            "covered == steps * full or (record.cursor_end == size and (steps - 1) * full < covered < steps * full)  "
            "->  "
            "covered == steps * full or (record.cursor_end == size and (steps - 1) * full < covered <= steps * full)"
        ): "where it is as much, the first condition holds",
        (
            "last == batch or (record.cursor_end == size and 0 < last < batch)  ->  "
            "last == batch or (record.cursor_end == size and 0 < last <= batch)"
        ): "a last step that is as large as the others is known by the first condition",
    },
    "pilot/history/rounds_ledger.py": {
        (
            "rows = np.frombuffer(reported, np.int64).reshape(-1, len(COLUMNS))  ->  "
            "rows = np.frombuffer(reported, np.int64).reshape(-2, len(COLUMNS))"
        ): "any negative length is the one that fits",
        (
            "begins = np.flatnonzero(np.diff(self.rows[:, EPOCH], prepend=-1))  ->  "
            "begins = np.flatnonzero(np.diff(self.rows[:, EPOCH], prepend=-2))"
        ): "no epoch has a negative number",
    },
    "pilot/core/curves/curve.py": {
        (
            "nodes >= self.nodes[last]  ->  nodes > self.nodes[last]"
        ): "the last point is a point, and beyond it its value per node holds",
        "RATES = (1e-09, 1000000000000000.0)  ->  RATES = (1e-09, 1000000000000001.0)": LIMIT,
    },
    "pilot/core/trainer/spec.py": {
        "PRIORITY_MAX = 1000000000.0  ->  PRIORITY_MAX = 1000000001.0": LIMIT,
        "NODES_MAX = 1000000  ->  NODES_MAX = 1000001": LIMIT,
        "COST_MAX_S = 1000000000.0  ->  COST_MAX_S = 1000000001.0": LIMIT,
        "TIME_MAX_S = 1000000000.0  ->  TIME_MAX_S = 1000000001.0": LIMIT,
        "BUDGET_MAX_H = 1000000000.0  ->  BUDGET_MAX_H = 1000000001.0": LIMIT,
    },
    "pilot/train/data/order.py": {
        (
            "self._bijection is None or self._bijection[0] != epoch  ->  "
            "self._bijection is None or self._bijection[1] != epoch"
        ): "it is made anew for each block, and is the same",
        (
            "self.size = max(length, 1)  ->  self.size = max(length, 2)"
        ): "a block may be larger than the epoch of one sample that is in it",
        "size = 1 << 14  ->  size = 1 << 15": "the order is the same in blocks of any size",
        (
            "bits = max(2, (length - 1).bit_length())  ->  bits = max(3, (length - 1).bit_length())"
        ): "orders of four samples are held as a whole",
    },
    "pilot/core/errors.py": {
        (
            "line = ' '.join(text[:2 * LONGEST].splitlines()) + text[2 * LONGEST:][-LONGEST:]  ->  "
            "line = ' '.join(text[:3 * LONGEST].splitlines()) + text[2 * LONGEST:][-LONGEST:]"
        ): "what is cut away anyway",
        (
            "line = ' '.join(text[:2 * LONGEST].splitlines()) + text[2 * LONGEST:][-LONGEST:]  ->  "
            "line = ' '.join(text[:2 * LONGEST].splitlines()) + text[3 * LONGEST:][-LONGEST:]"
        ): "what is cut away anyway",
    },
    "pilot/core/plan/explain.py": {
        (
            "other.nodes < now.nodes  ->  other.nodes <= now.nodes"
        ): "terms of as many nodes as there are now are not compared",
        (
            "nodes = counts.get(candidate.trainer, 0)  ->  nodes = counts.get(candidate.trainer, 1)"
        ): "a plan counts every candidate",
        "nodes = counts.get(trainer, 0)  ->  nodes = counts.get(trainer, 1)": "a plan counts every candidate",
    },
    "pilot/core/pool/pool.py": {
        "self.joined += 1  ->  self.joined += 2": "the numbers of nodes only have to rise",
    },
    "pilot/provisioning/scaling_policy.py": {
        (
            "return fits_s if worth_s <= fits_s < site.walltime_s else None  ->  "
            "return fits_s if worth_s <= fits_s <= site.walltime_s else None"
        ): "short jobs of the usual wall time are the usual jobs",
        "walltime_s: float = 0.0  ->  walltime_s: float = 1.0": "it is that of no jobs",
        "warm_up_s: float = 0.0  ->  warm_up_s: float = 1.0": "no wall time is shorter than a second",
    },
    "pilot/core/trainer/budget.py": {
        "used_s >= self.budget_s  ->  used_s > self.budget_s": TIE,
        (
            "used_s < WARNED_AT * self.budget_s or self.warned  ->  used_s <= WARNED_AT * self.budget_s or self.warned"
        ): TIE,
    },
    "pilot/core/trainer/transitions.py": {
        "assert_never(event)  ->  pass": NEVER,
        (
            "trainer.synced, trainer.saved, trainer.failed_writes = (True, False, 0)  ->  "
            "trainer.synced, trainer.saved, trainer.failed_writes = (False, False, 0)"
        ): "it is asked for where no group trains, and what ends a group sets it",
    },
    "pilot/core/pool/blame.py": {
        (
            "return min(LONGEST_S, AGAIN_S * 2.0 ** (min(times, 20) - 1))  ->  "
            "return min(LONGEST_S, AGAIN_S * 2.0 ** (min(times, 21) - 1))"
        ): "both are longer than the longest",
    },
    "pilot/core/coordinator.py": {
        "assert_never(event)  ->  pass": NEVER,
    },
    "pilot/core/trainer/reconcile.py": {
        (
            "Rule('ended', 'it has ended', lambda s: s.trainer.outcome is not None, final=True)  ->  "
            "Rule('ended', 'it has ended', lambda s: s.trainer.outcome is not None, final=False)"
        ): "who has ended has no nodes and no workers, so nothing else applies",
    },
    "pilot/core/ids.py": {
        (
            "return tuple(((1, int(part), part) if _is_number(part) else (0, 0, part) for part in parts))  ->  "
            "return tuple(((2, int(part), part) if _is_number(part) else (0, 0, part) for part in parts))"
        ): "a number only has to come after a text",
        (
            "return tuple(((1, int(part), part) if _is_number(part) else (0, 0, part) for part in parts))  ->  "
            "return tuple(((1, int(part), part) if _is_number(part) else (0, 1, part) for part in parts))"
        ): "the same of all texts",
    },
    "pilot/core/plan/problem.py": {
        (
            "return self.rescale_up_s if nodes > self.current_nodes else self.rescale_down_s  ->  "
            "return self.rescale_up_s if nodes >= self.current_nodes else self.rescale_down_s"
        ): "as many nodes as now are no rescale: that was asked before",
    },
    "pilot/train/data/sampler.py": {
        (
            "step = self.micro or stop - start  ->  step = self.micro or stop + start"
        ): "one step is enough to be beyond the end",
    },
    "pilot/core/curves/curve_model.py": {
        "gain >= 0  ->  gain > 0": "a step that gains nothing is the last one, and what costs the same is as likely",
        (
            "0 <= gain < _SMALLEST_GAIN  ->  0 <= gain <= _SMALLEST_GAIN"
        ): "a tie at a gain of a billionth, and any smaller one ends the search",
    },
    "pilot/core/curves/measured.py": {
        (
            "since_s = now_s - self._rated_s if nodes == self._rated_on else 0.0  ->  "
            "since_s = now_s - self._rated_s if nodes == self._rated_on else 1.0"
        ): "the first report of a rate counts for a second, as the next line says",
    },
    "pilot/core/curves/worth.py": {
        (
            "some = [n for n in allowed if len(allowed) <= FEW or n in ends or n & n - 1 == 0]  ->  "
            "some = [n for n in allowed if len(allowed) <= FEW or n in ends or n & n - 2 == 0]"
        ): "of powers of two it leaves out 1 alone, and that is an end wherever it is allowed",
    },
    "pilot/core/trainer/trainer.py": {
        (
            "grew: bool = True  ->  grew: bool = False"
        ): "only the reports of a group read it, and each group that forms sets it",
        (
            "synced: bool = False  ->  synced: bool = True"
        ): "only who holds a state is asked for it, and the group that makes it one sets it",
    },
    "pilot/core/pool/losses.py": {
        (
            "since_s: float = 0.0  ->  since_s: float = 1.0"
        ): "until nodes are held for the first time there is nothing that could fade",
    },
    "pilot/core/trainer/checkpoint_interval.py": {
        (
            "return self.end_in_s - (self.write_s or 0.0) - MARGIN_S  ->  "
            "return self.end_in_s - (self.write_s or 1.0) - MARGIN_S"
        ): "a write that takes no time fits into any grace period, and then this is not asked",
    },
}
EQUIVALENT = {(path, what): why for path, its in _BY_MODULE.items() for what, why in its.items()}
