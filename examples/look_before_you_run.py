"""Plan without training: what fits, what it costs, what sets the limit; here, and for a GPU that is not here.

Run: python examples/look_before_you_run.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import lowtide

model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU()))).train()
x = torch.randn(512, 256)

plan = lowtide.plan(model, args=(x,), budget="75% of plain")
print(plan)
print(plan.explain(top=5))

try:
    lowtide.plan(model, args=(x,), budget="1MiB")
except lowtide.InfeasibleBudget as error:
    print(f"\n{error}\n")

print("on an H200:", lowtide.plan(model, args=(x,), budget="75% of plain", machine="h200"))

with tempfile.TemporaryDirectory() as folder:  # a plan is a file: keep it, look at it, train with it
    path = Path(folder) / "plan.json"
    plan.save(path)
    fitted = lowtide.fit(model, plan=path)
    fitted(x).sum().backward()
    print("trained with the saved plan:", fitted.lowtide.plan)
