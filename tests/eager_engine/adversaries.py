"""An unrolled GAN: the generator's gradient goes through the discriminator's own next updates (Metz et al., 2017)."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.optim import SGD, Adam, Optimizer

_UNROLLED_RATE = 0.1


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Adversaries(nn.Module):
    """A generator and a discriminator of vectors.

    Arguments:
        unrolled: updates of the discriminator that the generator looks ahead, differentiated twice.
    """

    def __init__(self, width: int, hidden: int, unrolled: int) -> None:
        super().__init__()
        self.width, self.unrolled = width, unrolled
        self.generator = _perceptron(width, hidden, hidden, width)
        self.discriminator = _perceptron(width, hidden, hidden, 1)

    def optimizers(self) -> tuple[Optimizer, ...]:
        """Those of the generator and of the discriminator."""
        return Adam(self.generator.parameters(), lr=1e-3), SGD(self.discriminator.parameters(), lr=0.05)

    def train_on(self, real: torch.Tensor, generating: Optimizer, judging: Optimizer) -> torch.Tensor:
        """One step of both; returns the sum of their losses, detached."""
        judging.zero_grad()
        with torch.no_grad():
            made = self.generator(torch.randn(len(real), self.width))
        judgement = self._judge(dict(self.discriminator.named_parameters()), real, made)
        judgement.backward()
        judging.step()
        generating.zero_grad()
        made = self.generator(torch.randn(len(real), self.width))
        ahead = dict(self.discriminator.named_parameters())
        for _ in range(self.unrolled):
            loss = self._judge(ahead, real, made)
            gradients = torch.autograd.grad(loss, list(ahead.values()), create_graph=True)
            ahead = {n: p - _UNROLLED_RATE * g for (n, p), g in zip(ahead.items(), gradients, strict=True)}
        fooled = functional_call(self.discriminator, ahead, (made,))
        loss = F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))
        loss.backward()
        generating.step()
        return loss.detach() + judgement.detach()

    def _judge(self, parameters: dict[str, torch.Tensor], real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        right = functional_call(self.discriminator, parameters, (real,))
        wrong = functional_call(self.discriminator, parameters, (made,))
        return F.softplus(-right).mean() + F.softplus(wrong).mean()
