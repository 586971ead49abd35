"""What DTR's simulator says of the published traces: total cost over the cost without a limit, by share of the peak.

`simrd` of https://github.com/uwsampl/dtr-prototype, the runtime of its evaluation (a tensor is evicted when its last name
goes), at most twice the cost. A row ends where the simulator first fails.
"""

from __future__ import annotations

RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
MEMORY, TIME = "out of memory", "over 2x"

POLICIES = {
    "dtr-classes": "h_DTR, equivalence classes",
    "dtr-local": "h_DTR, local",
    "lru": "LRU",
    "size": "size",
    "msps": "MSPS",
    "dtr": "h_DTR",
}
"""Ours -> the name there."""

_ROWS = {
    "unet": {
        "dtr-classes": "1.033 1.058 1.085 1.149 1.159 M",
        "dtr-local": "1.028 1.056 1.091 1.137 1.847 M",
        "lru": "1.039 1.062 1.104 1.225 T",
        "size": "1.043 1.128 1.158 1.592 1.659 M",
        "msps": "1.016 1.033 1.049 1.088 1.132 1.241 1.585 M",
        "dtr": "1.033 1.058 1.085 1.131 1.159 M",
    },
    "resnet32": {
        "dtr-classes": "1.013 1.025 1.046 1.074 1.107 1.140 1.179 1.332 M",
        "dtr-local": "1.013 1.041 1.067 1.133 1.197 T",
        "lru": "1.032 1.067 1.095 1.130 T",
        "size": "1.030 1.065 1.092 1.234 1.452 1.738 T",
        "msps": "1.013 1.024 1.037 1.063 1.106 1.146 1.209 1.431 M",
        "dtr": "1.013 1.025 1.046 1.074 1.107 1.140 1.178 1.371 T",
    },
    "densenet121": {
        "dtr-classes": "1.026 1.064 1.104 1.141 1.176 1.293 1.426 1.616 M",
        "dtr-local": "1.030 1.054 1.087 1.118 1.335 1.402 1.509 1.650 M",
        "lru": "1.031 1.062 1.096 T",
        "size": "1.055 1.074 1.152 1.211 T",
        "msps": "1.028 1.053 1.098 1.114 1.164 1.232 1.331 1.465 M",
        "dtr": "1.026 1.064 1.104 1.141 1.176 1.271 1.446 1.679 M",
    },
    "transformer": {
        "dtr-classes": "1.009 1.020 1.031 1.044 1.058 1.091 1.124 1.545 M",
        "dtr-local": "1.010 1.022 1.037 1.060 1.112 1.161 1.505 1.642 M",
        "lru": "1.033 1.065 1.098 1.134 T",
        "size": "1.016 1.028 1.046 1.053 1.066 1.080 1.135 T",
        "msps": "1.009 1.018 1.035 1.048 1.067 1.089 1.113 1.333 M",
        "dtr": "1.009 1.020 1.031 1.044 1.058 1.083 1.123 1.352 T",
    },
}
TRACES = tuple(_ROWS)


def published(trace: str, policy: str) -> tuple[float | str, ...]:
    """Of each ratio, in order: the quotient, or how the run failed; shorter where it was not run."""
    words = {"M": MEMORY, "T": TIME}
    return tuple(words[cell] if cell in words else float(cell) for cell in _ROWS[trace][policy].split())
