"""The demo's own parts: its text, its model without a working torchvision, and its notion of equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowtide.demo.text import VOCABULARY, Batches, read_sources
from lowtide.demo.training import Training, equal_states


def test_text_is_pythons_own_sources() -> None:
    text = read_sources(2**20)
    assert text.dtype is torch.uint8
    assert len(text) == 2**20
    assert b"import" in bytes(text[:65536].tolist())
    assert torch.equal(text, read_sources(2**20))


def test_batches_depend_on_seed_and_step_alone() -> None:
    text = read_sources(2**18)
    batches, again = (Batches(text, batch=3, length=16, seed=5) for _ in range(2))
    torch.manual_seed(1)
    first = batches[4]
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(first, again[4])
    assert torch.equal(state, torch.get_rng_state())
    assert first.shape == (3, 16)
    assert first.dtype is torch.int64
    assert int(first.max()) < VOCABULARY
    assert not torch.equal(first, batches[5])
    assert not torch.equal(first, Batches(text, batch=3, length=16, seed=6)[4])


BROKEN = {
    "load": "import torchvision.ops\nraise RuntimeError('operator torchvision::nms does not exist')",
    "library": "raise OSError('libcudart.so.13: cannot open shared object file')",
    "missing": "raise ImportError('no such part')",
}


@pytest.mark.parametrize(
    "kind", ["load", *(pytest.param(kind, marks=pytest.mark.breadth) for kind in ("library", "missing"))]
)
def test_a_torchvision_that_cannot_load_does_not_stop_the_demo(tmp_path: Path, kind: str) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(BROKEN[kind] + "\n", encoding="utf-8")
    (package / "ops.py").write_text("", encoding="utf-8")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from lowtide.demo.model import build_model\n"
        "model = build_model(0)\n"
        "assert type(model).__module__ == 'transformers.models.gpt2.modeling_gpt2'\n"
        "assert sys.modules['torchvision'] is None and 'torchvision.ops' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class _Loss:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class _Toy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> _Loss:
        noisy = torch.nn.functional.dropout(self.layer(input_ids.float()), 0.5)
        return _Loss((noisy - labels).square().mean())


def _side() -> Training:
    torch.manual_seed(0)
    model = _Toy()
    batches = Batches(read_sources(2**17), batch=2, length=4, seed=0)
    return Training(model, torch.optim.AdamW(model.parameters()), batches)


def test_two_plain_trainings_agree_in_every_bit_and_one_changed_bit_shows() -> None:
    one, two = _side(), _side()
    told: list[int] = []
    losses = one.train(3, 7, lambda step, _: told.append(step))
    expected = one.snapshot()
    assert losses == two.train(3, 7, lambda *_: None)
    found = two.snapshot()
    assert told == [0, 1, 2]
    assert set(expected) - {"buffers"} == set(equal_states(found, expected))
    assert all(equal_states(found, expected).values())
    found["parameters"][0][0, 0] += 1e-6
    assert equal_states(found, expected)["parameters"] is False
    found["gradients"].pop()
    assert equal_states(found, expected)["gradients"] is False


def test_observation_starts_from_what_is_resident() -> None:
    side = _side()
    side.step(0)
    level_B, seen = side.observe(1)
    assert level_B == 4 * (16 + 4) + 2 * 4 * 8
    assert seen.peak_B > 0
    assert seen.end_B >= 4 * (16 + 4)
