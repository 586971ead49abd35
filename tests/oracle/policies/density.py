"""What calls cost per byte that they make, on the geometric mean over bytes. Torch-free."""

from __future__ import annotations

import math

from tests.oracle.capacity import SMALL_B
from tests.oracle.ledger import Call


class Density:
    """The mean so far; results up to `SMALL_B` do not count."""

    def __init__(self) -> None:
        self.weighted_log = 0.0
        self.weight_B = 0.0

    def learn(self, call: Call) -> None:
        """Counts a first run."""
        for output in call.outputs:
            if output.size_B > SMALL_B:
                weight_B = float(output.size_B)
                self.weighted_log += math.log(float(call.cost_ns + 1) / weight_B) * weight_B
                self.weight_B += weight_B

    def is_dense(self, cost_ns: int, size_B: int) -> bool:
        """Whether such a call costs the mean or more; yes as long as there is none."""
        if self.weight_B == 0:
            return True
        return math.log(float(cost_ns + 1) / float(size_B)) >= self.weighted_log / self.weight_B

    def mean_ns(self) -> float:
        """Per byte; 0 as long as there is none."""
        return math.exp(self.weighted_log / self.weight_B) if self.weight_B > 0 else 0.0
