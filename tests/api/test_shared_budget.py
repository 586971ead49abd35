"""Several models that train under one budget, as generator and discriminator do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.errors import BudgetError, LowtideError
from tests.networks import twin


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, outputs))


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return mlp(16, 32), mlp(32, 1)


def adams(generator: nn.Module, critic: nn.Module) -> tuple[torch.optim.Adam, torch.optim.Adam]:
    return torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)


def adversarial(
    models: tuple[nn.Module, nn.Module], optimizers: tuple[torch.optim.Adam, torch.optim.Adam], steps: int = 4
) -> list[torch.Tensor]:
    """The usual loop: the critic on real and on detached made-up samples, then the generator through the critic."""
    generator, critic = models
    for_generator, for_critic = optimizers
    torch.manual_seed(1)
    for _ in range(steps):
        real, noise = torch.randn(64, 32), torch.randn(64, 16)
        for_critic.zero_grad()
        fake = generator(noise)
        loss = F.softplus(-critic(real)).mean()
        loss.backward()
        loss = F.softplus(critic(fake.detach())).mean()
        loss.backward()
        for_critic.step()
        for_generator.zero_grad()
        loss = F.softplus(-critic(fake)).mean()
        loss.backward()
        for_generator.step()
        del fake, loss
    return [t.detach().clone() for m in models for t in m.parameters()]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_an_adversarial_pair_trains_inside_one_budget() -> None:
    plain = pair()
    ours = (twin(plain[0]), twin(plain[1]))
    expected = adversarial(plain, adams(*plain))
    optimizers = adams(*ours)
    lowtide.fit(ours[0], budget="2MiB", optimizer=optimizers[0], work=2_000)
    lowtide.fit(ours[1], share=ours[0], optimizer=optimizers[1], work=2_000)
    for a, b in zip(expected, adversarial(ours, optimizers), strict=True):
        assert torch.equal(a, b)
    stats = [lowtide.memory_stats(m) for m in ours]
    assert stats[0].arena_B == stats[1].arena_B
    assert stats[0].reserved_B == stats[1].reserved_B <= 2 * 2**20
    weights_B = sum(p.nbytes for m in ours for p in m.parameters())
    for model in ours:
        plan = model.lowtide.plan
        assert plan.record.fixed_B >= 3 * weights_B  # weights and two moments of both
        assert lowtide.misplaced_allocations(model) == ()


def test_joining_makes_the_plans_of_the_others_again_and_leaving_does_too() -> None:
    generator, critic = pair()
    lowtide.fit(generator, budget="2MiB", work=2_000)
    generator(torch.randn(8, 16)).sum().backward()
    alone_B = generator.lowtide.plan.record.fixed_B
    lowtide.fit(critic, share=generator, work=2_000)
    generator(torch.randn(8, 16)).sum().backward()
    assert generator.lowtide.plan.record.fixed_B > alone_B
    lowtide.unfit(critic)
    generator(torch.randn(8, 16)).sum().backward()
    assert generator.lowtide.plan.record.fixed_B == alone_B
    assert lowtide.memory_stats(generator).budget_kind == "enforced"


def test_a_changed_budget_holds_for_all() -> None:
    generator, critic = pair()
    lowtide.fit(generator, budget="2MiB", work=2_000)
    lowtide.fit(critic, share=generator, work=2_000)
    critic.lowtide.set_budget("3MiB")
    for model, width in ((generator, 16), (critic, 32)):
        model(torch.randn(8, width)).sum().backward()
        assert model.lowtide.plan.budget_B == 3 * 2**20


def test_what_cannot_be_shared_is_refused_before_anything_changes() -> None:
    generator, critic = pair()
    with pytest.raises(LowtideError, match="was not fitted"):
        lowtide.fit(critic, share=generator)
    lowtide.fit(generator, budget="2MiB")
    with pytest.raises(BudgetError, match="leave budget= out"):
        lowtide.fit(critic, budget="1MiB", share=generator)
    with pytest.raises(BudgetError, match="the model itself"):
        lowtide.fit(generator, share=generator)
    assert not hasattr(critic, "lowtide")
    assert generator.lowtide is not None
