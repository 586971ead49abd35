"""Plans are exchanged between steps, under everything that can be outstanding, and nothing changes."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device.observer import observe
from lowtide.results.plan import Plan
from tests.networks import NETWORKS, Network, twin

CASES = [("mixed", False), ("mixed", True), ("tied", False), ("tied", True), ("unet", False)]


class Pair:
    """The same network plainly and fitted, with plans from everything kept to next to nothing."""

    def __init__(self, network: Network, autocast: bool = False) -> None:
        self.network, self.autocast = network, autocast
        self.plain = network.build()
        self.fitted = lowtide.fit(twin(self.plain), budget="100% of plain", scope="none", work=5_000)
        self.batches = network.batches(6)
        self.plans: list[Plan] = []
        self._turn = 0
        start = {k: v.clone() for k, v in self.plain.state_dict().items()}
        self.loss(self.fitted, 0)
        self.plans.append(self.fitted.lowtide.plan)
        high_B = self.plans[0].peak_B
        for fraction in (0.95, 0.85, 0.75):
            try:
                self.fitted.lowtide.set_budget(int(fraction * high_B))
                self.loss(self.fitted, 0)
                self.plans.append(self.fitted.lowtide.plan)
            except lowtide.InfeasibleBudget as error:
                if error.smallest_B is not None and error.smallest_B < high_B:
                    self.fitted.lowtide.set_budget(error.smallest_B)
                    self.loss(self.fitted, 0)
                    self.plans.append(self.fitted.lowtide.plan)
                break
        self.fitted.load_state_dict(start)
        assert len(self.plans) > 1, "there is something to exchange"

    def exchange(self) -> None:
        """Activates the next plan."""
        self._turn += 1
        self.fitted.lowtide.use(self.plans[self._turn % len(self.plans)])

    def loss(self, module: nn.Module, batch: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return self.network.loss(module, self.batches[batch])

    def both(self, scenario: Callable[[nn.Module, Callable[[], None]], list[torch.Tensor]]) -> None:
        """Runs a scenario on each; all tensors it returns, all gradients, buffers and the generator are equal."""
        results = []
        for module, exchange in ((self.plain, lambda: None), (self.fitted, self.exchange)):
            torch.manual_seed(3)
            module.zero_grad()
            returned = scenario(module, exchange)
            grads = [torch.zeros(()) if p.grad is None else p.grad for p in module.parameters()]
            results.append([*returned, *grads, *module.buffers(), torch.get_rng_state()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.fixture(params=CASES, ids=lambda p: f"{p[0]}{'-bf16' * p[1]}", scope="module")
def pair(request: pytest.FixtureRequest) -> Pair:
    torch._dynamo.reset()
    name, autocast = request.param
    return Pair(NETWORKS[name], autocast)


def test_every_step_another_plan(pair: Pair) -> None:
    def scenario(module: nn.Module, exchange: Callable[[], None]) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05)
        losses = []
        for batch in range(5):
            exchange()
            loss = pair.loss(module, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    pair.both(scenario)


def test_retained_graph(pair: Pair) -> None:
    def scenario(module: nn.Module, exchange: Callable[[], None]) -> list[torch.Tensor]:
        pair.loss(module, 0).backward()  # one without retaining first: slots must not be donated afterwards
        loss = pair.loss(module, 1)
        exchange()
        loss.backward(retain_graph=True)
        exchange()
        loss.backward()
        return [loss.detach()]

    pair.both(scenario)


def test_backwards_out_of_order(pair: Pair) -> None:
    def scenario(module: nn.Module, exchange: Callable[[], None]) -> list[torch.Tensor]:
        losses = []
        for batch in range(3):
            exchange()
            losses.append(pair.loss(module, batch))
        exchange()
        for index in (1, 2, 0):
            losses[index].backward()
        return [x.detach() for x in losses]

    pair.both(scenario)


def test_accumulation_evaluation_exception(pair: Pair) -> None:
    def scenario(module: nn.Module, exchange: Callable[[], None]) -> list[torch.Tensor]:
        pair.loss(module, 0).backward()
        exchange()
        module.eval()
        with torch.no_grad():
            evaluated = pair.loss(module, 1)
        module.train()

        def interrupted() -> None:
            loss = pair.loss(module, 2)
            raise ValueError(f"on purpose, with {loss.requires_grad}")

        with pytest.raises(ValueError, match="on purpose, with True"):
            interrupted()
        exchange()
        pair.loss(module, 3).backward()
        return [evaluated]

    pair.both(scenario)


def test_a_forward_without_backward_keeps_nothing_alive(pair: Pair) -> None:
    pair.loss(pair.fitted, 0)
    gc.collect()
    with observe() as seen:
        loss = pair.loss(pair.fitted, 0)
        del loss
        gc.collect()
    assert seen.peak_B > 0
    assert seen.end_B == 0
    pair.fitted.load_state_dict(pair.plain.state_dict())  # running statistics have changed


def test_saved_tensor_hooks_that_clone(pair: Pair) -> None:
    def scenario(module: nn.Module, exchange: Callable[[], None]) -> list[torch.Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
            loss = pair.loss(module, 0)
        exchange()
        loss.backward()
        return [loss.detach()]

    pair.both(scenario)
