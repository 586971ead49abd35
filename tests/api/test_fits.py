"""Does it fit on that card? Answered without the card, without the model's bytes, and without changing anything."""

from __future__ import annotations

import gc
import resource
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lowtide
from lowtide.device.address_space import untouched
from lowtide.profile.machines import MACHINES, load_machine, nearest_machine
from tests.networks import Mixed

GB = 10**9


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Block(nn.Module):
    """Attention and a perceptron, as in a language model."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mix, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.second = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        h = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Language(nn.Module):
    """A small GPT with tied weights, a buffer, and a tensor that is a plain attribute."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 32_000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(()))
        self.plain = torch.ones(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * self.scale * self.plain
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def large() -> tuple[nn.Module, torch.Tensor]:
    """Two layers of a 7B model, and a batch, on the meta device: 2.1 GB of parameters, 0.5 GB of logits a copy."""
    with torch.device("meta"):
        return Language(2, 4096, 32), torch.empty(2, 2048, dtype=torch.int64)


def test_a_model_without_bytes_is_asked_about_and_stays_so() -> None:
    model, tokens = large()
    before = {name: id(t) for name, t in model.state_dict(keep_vars=True).items()}
    used_B = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answers = {name: lowtide.fits(model, (tokens,), device=name) for name in ("h100", "rtx4080", "rtx3080")}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - used_B < GB
    assert {name: id(t) for name, t in model.state_dict(keep_vars=True).items()} == before
    assert all(t.device.type == "meta" for t in (*model.parameters(), *model.buffers(), model.plain))
    roomy = answers["h100"]
    assert roomy
    assert roomy.overhead == 0
    assert "fits as it is" in repr(roomy)
    parameters_B = sum(p.nbytes for p in model.parameters())
    assert 2 * parameters_B < roomy.floor_B <= roomy.plain_B < 40 * GB
    assert "optimizer state" in str(roomy)
    assert "predicted, not measured" in str(roomy)
    for answer in answers.values():
        assert answer.reserve_B == 2**30
        assert answer.plain_B == roomy.plain_B
        assert bool(answer) is (answer.plan is not None)


def test_what_was_made_by_fake_mode_does_as_well() -> None:
    with FakeTensorMode():
        model, tokens = Language(1, 64, 4, 100), torch.zeros(2, 16, dtype=torch.int64)
        inside = lowtide.fits(model, (tokens,), device="t4")
    with torch.device("meta"):
        made = Language(1, 64, 4, 100)
        there = lowtide.fits(made, (torch.zeros(2, 16, dtype=torch.int64),), device="t4")
    assert there.plain_B == inside.plain_B
    real = lowtide.fits(Language(1, 64, 4, 100), (torch.zeros(2, 16, dtype=torch.int64),), device="t4")
    outside = lowtide.fits(model, (tokens,), device="t4")
    assert inside.plain_B == outside.plain_B == real.plain_B
    assert inside.floor_B == outside.floor_B == real.floor_B


def test_the_three_verdicts_and_the_batch_that_would_fit() -> None:
    model = Mixed().train()
    inputs = (torch.randn(256, 12), torch.arange(256) % 5)
    roomy = lowtide.fits(model, inputs, device=2**30)
    assert roomy
    assert roomy.reserve_B == 0
    tight = lowtide.fits(model, inputs, device=(roomy.plain_B + roomy.floor_B) // 2)
    assert tight
    assert tight.overhead is not None
    assert tight.overhead > 0
    assert tight.smallest_B is not None
    assert roomy.floor_B <= tight.smallest_B <= tight.memory_B
    assert "with lowtide, +" in tight.verdict
    none = lowtide.fits(model, inputs, device=roomy.floor_B - 1)
    assert not none
    assert none.plan is None
    assert none.largest_batch is not None
    assert 0 < none.largest_batch < 256
    assert f"a batch of {none.largest_batch} would fit" in none.verdict
    fewer = tuple(t[: none.largest_batch] for t in inputs)
    assert lowtide.fits(model, fewer, device=roomy.floor_B - 1)
    nothing = lowtide.fits(model, inputs, device="1KiB")
    assert nothing.largest_batch == 0
    assert "no batch would fit" in nothing.verdict


def test_a_batch_of_different_extents_is_refused_where_named_and_else_left_open() -> None:
    with pytest.raises(lowtide.errors.LowtideError, match=r"different extents.*x 12, y 4.*Name those that vary"):
        lowtide.fits(Mixed(), (torch.randn(4, 12), torch.arange(4)), device="1KiB", vary_only=["x:1", "y:0"])

    class Weighted(nn.Module):
        """Takes a batch, and weights of its features."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 12)

        def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return (self.linear(x) * weights).square().mean()

    unknown = lowtide.fits(Weighted(), (torch.randn(4, 12), torch.ones(12)), device="64")
    assert not unknown
    assert unknown.largest_batch is None
    assert "different extents" in str(unknown)
    known = lowtide.fits(Weighted(), (torch.randn(4, 12), torch.ones(12)), device="64", vary_only=["x:0"])
    assert known.largest_batch == 0


def test_an_optimizer_counts_its_state_and_its_temporaries() -> None:
    model = Mixed().train()
    inputs = (torch.randn(2, 12), torch.arange(2))
    without = lowtide.fits(model, inputs, device="1GiB")
    with_one = lowtide.fits(model, inputs, device="1GiB", optimizer=torch.optim.AdamW(model.parameters()))
    trained_B = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert with_one.floor_B - without.floor_B >= 2 * trained_B
    assert not any("optimizer" in text for text in with_one.outside)
    small_B = with_one.floor_B - 1
    assert not lowtide.fits(model, inputs, device=small_B, optimizer=torch.optim.AdamW(model.parameters()))
    assert lowtide.fits(model, inputs, device=small_B)
    model.eval()
    with torch.no_grad():
        assert lowtide.fits(model, inputs, device="1GiB").plain_B < without.plain_B


def test_an_optimizer_of_a_model_without_bytes() -> None:
    with torch.device("meta"):
        model, tokens = Language(1, 512, 8, 100), torch.empty(2, 64, dtype=torch.int64)
    parameters_B = sum(p.nbytes for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    answer = lowtide.fits(model, (tokens,), device="h100", optimizer=optimizer)
    assert 5 * parameters_B <= answer.floor_B < 6 * parameters_B  # a GPU's step holds one more of each
    assert not any("optimizer" in text for text in answer.outside)
    assert optimizer.defaults == torch.optim.AdamW(model.parameters()).defaults
    assert optimizer.param_groups[0]["foreach"] is None
    one_by_one = torch.optim.AdamW(model.parameters(), foreach=False)
    assert lowtide.fits(model, (tokens,), device="h100", optimizer=one_by_one).floor_B < answer.floor_B
    with FakeTensorMode():
        fake = Language(1, 512, 8, 100)
        fake_one = torch.optim.AdamW(fake.parameters())
    assert lowtide.fits(fake, (tokens,), device="h100", optimizer=fake_one).floor_B == answer.floor_B


def test_devices_by_name_bytes_and_the_one_here() -> None:
    assert load_machine("RTX 4090") is MACHINES["rtx4090"]
    assert load_machine("A100-80GB") is MACHINES["a100"]
    assert nearest_machine(2**30).name == "rtx3080"
    assert nearest_machine(81 * GB).name in ("h100", "h100-pcie", "a100")
    model, inputs = Mixed().eval(), (torch.randn(2, 12), torch.arange(2))
    here = lowtide.fits(model, inputs, device="cpu")
    assert here
    assert here.device == "the cpu here"
    assert lowtide.fits(model, inputs, device=torch.device("cpu"), reserve="1MiB").reserve_B == 2**20
    with pytest.raises(lowtide.LowtideError, match="rtx4090"):
        lowtide.fits(model, inputs, device="rtx9090")
    if not torch.cuda.is_available():
        with pytest.raises(lowtide.LowtideError, match="no GPU here"):
            lowtide.fits(model, inputs, device="cuda")
    with pytest.raises(lowtide.BudgetError, match="share of something"):
        lowtide.fits(model, inputs, device="60%")


def test_a_model_half_here_is_refused_and_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.Linear(4, 4))
    assert lowtide.fits(model, (torch.ones(2, 4),), device="t4")
    assert model[0].weight.device.type == "meta"
    with pytest.raises(lowtide.CaptureError, match="no graph"):
        lowtide.fits(nn.Identity(), (3,), device="t4")


def test_the_model_is_not_kept_alive_and_an_optimizer_has_to_be_one() -> None:
    model = nn.Linear(4, 4)
    inputs = (torch.ones(2, 4),)
    with pytest.raises(lowtide.OptimizerError, match="is no torch"):
        lowtide.fits(model, inputs, device="t4", optimizer=torch.optim.SGD)  # type: ignore[arg-type]
    assert lowtide.fits(model, inputs, device="t4")
    assert lowtide.plan(model, inputs, budget="1GiB")
    assert lowtide.max_batch(lambda n: torch.ones(n, 4), model, "16KiB", high=4).size == 4
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_untouched_bytes_are_zeros_with_an_address() -> None:
    pages = untouched(2**40)
    assert pages.data_ptr()
    assert pages[2**39] == 0
    pages[2**39] = 7
    assert pages[2**39 : 2**39 + 2].tolist() == [7, 0]
    assert untouched(0).numel() == 0
    with pytest.raises(lowtide.LowtideError, match="address space"):
        untouched(2**62)
