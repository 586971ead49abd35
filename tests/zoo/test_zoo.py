"""Unmodified networks of the ecosystem train inside the arena, bit for bit, with room and at the smallest budget."""

from __future__ import annotations

import pytest
import torch

import lowtide
from lowtide.report.implementations import implementations
from tests.api.test_equality import smallest
from tests.networks import Network, Trace, differences, train, twin
from tests.zoo.catalogue import BREADTH, CATALOGUE, IN_PIECES, REFUSED
from tests.zoo.inputs import images
from tests.zoo.torchvision_networks import densenet

STEPS = 3
NETWORKS = [pytest.param(n, marks=pytest.mark.breadth) if n in BREADTH else n for n in CATALOGUE if n not in REFUSED]
WITH_OTHERS = ("transformers/bert", "transformers/vit", "torchvision/vgg16")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def check(network: Network, fitted: torch.nn.Module, expected: Trace) -> None:
    """Three steps are those of plain PyTorch, and every allocation was served as planned, inside the budget."""
    assert differences(expected, train(fitted, network.loss, network.batches(STEPS))) == []
    assert lowtide.misplaced_allocations(fitted) == ()
    seen = lowtide.memory_stats(fitted)
    assert seen.budget_kind == "enforced"
    assert seen.reserved_B <= seen.budget_B
    assert (seen.spills, seen.overflows, seen.planned_misses) == (0, 0, 0)
    assert seen.forwards > 0


# torch warns of `functools.lru_cache` in a model's code, which it looks through.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")  # SSD draws a size
@pytest.mark.parametrize("name", NETWORKS)
def test_training_is_unchanged_with_room_and_without(name: str) -> None:
    network = CATALOGUE[name]
    plain = network.build()
    fitted = lowtide.fit(twin(plain), budget="1GiB", work=2_000)
    start = {k: v.clone() for k, v in plain.state_dict().items()}
    expected = train(plain, network.loss, network.batches(STEPS))
    check(network, fitted, expected)
    low_B = smallest(fitted, network)
    if name not in IN_PIECES:
        fitted.load_state_dict(start)
        fitted.lowtide.set_budget(low_B)
        check(network, fitted, expected)
    if name in WITH_OTHERS:
        assert implementations(fitted.lowtide.plan.record).sites, "every call site ran what the program runs"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    network, (error, text) = CATALOGUE[name], REFUSED[name]
    fitted = lowtide.fit(network.build(), budget="1GiB", work=2_000)
    with pytest.raises(error, match=text):
        network.loss(fitted, network.batches(1)[0])


def test_a_mask_is_left_out_where_eager_leaves_it_out() -> None:
    """transformers leaves out a mask that masks nothing unless it is compiled: attention rounds differently then."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make() -> torch.nn.Module:
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
        sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}
        return LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))

    def batches(_: int) -> list[dict[str, torch.Tensor]]:
        words = torch.randint(0, 64, (3, 600), generator=torch.Generator().manual_seed(1))
        ones, padded = torch.ones_like(words[:1]), torch.ones_like(words[:1])
        padded[:, 550:] = 0
        masks = ({}, {"attention_mask": ones}, {"attention_mask": padded})
        return [{"input_ids": w[None], "labels": w[None], **mask} for w, mask in zip(words, masks, strict=True)]

    network = Network("masks", make, lambda m, b: m(**b), batches)
    plain = network.build()
    fitted = lowtide.fit(twin(plain), budget="1GiB", work=2_000)
    check(network, fitted, train(plain, network.loss, network.batches(STEPS)))


def test_statistics_move_once_inside_a_users_checkpoints() -> None:
    """torch runs what is checkpointed twice, and moves statistics twice; here they move as without checkpoints."""
    network = Network("densenet", lambda: densenet(in_checkpoints=False), lambda m, b: m(*b), images())
    plain = network.build()
    fitted = lowtide.fit(densenet(in_checkpoints=True), budget="1GiB", work=2_000)
    fitted.load_state_dict(plain.state_dict())
    expected = train(plain, network.loss, network.batches(STEPS))
    check(network, fitted, expected)
