"""Pairwise covering sets: every pair of values of any two axes stands together in at least one case."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence


def pairwise(axes: Mapping[str, Sequence], seed: int = 0) -> list[dict]:
    """Greedy: each case is the best of some random completions of a pair that is still open."""
    names = list(axes)
    rng = random.Random(seed)
    open_pairs = {
        ((x, i), (y, j))
        for x, y in itertools.combinations(range(len(names)), 2)
        for i in range(len(axes[names[x]]))
        for j in range(len(axes[names[y]]))
    }

    def pairs_of(case: list[int]) -> set:
        return set(itertools.combinations(enumerate(case), 2))

    cases = []
    while open_pairs:
        first, second = min(open_pairs)
        best, best_gain = None, -1
        for _ in range(60):
            case = [rng.randrange(len(axes[name])) for name in names]
            case[first[0]], case[second[0]] = first[1], second[1]
            gain = len(pairs_of(case) & open_pairs)
            if gain > best_gain:
                best, best_gain = case, gain
        open_pairs -= pairs_of(best)
        cases.append({name: axes[name][index] for name, index in zip(names, best, strict=True)})
    return cases
