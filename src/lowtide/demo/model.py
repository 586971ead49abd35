"""transformers' own GPT-2 with random weights, found without a network and without a working torchvision."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import cast

import torch

from lowtide.demo.text import VOCABULARY
from lowtide.errors import LowtideError

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 4, 256, 8, 256, 6
DROPOUT = 0.1


def build_model(seed: int) -> torch.nn.Module:
    """A `GPT2LMHeadModel` in training mode, dropout on; the same weights for the same seed.

    Raises:
        LowtideError: if transformers is not installed.
    """
    hide_broken_torchvision()
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(name, "1")
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ModuleNotFoundError as error:
        raise LowtideError(f"the demo trains transformers' GPT-2: pip install transformers ({error})") from error
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=DROPOUT,
        embd_pdrop=DROPOUT,
        attn_pdrop=DROPOUT,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # its own default; unset, it warns at the first loss
    return cast(torch.nn.Module, model.train())


def hide_broken_torchvision() -> bool:
    """Makes a torchvision that cannot load look as if it were not installed, for this process.

    transformers asks `importlib.util.find_spec` whether torchvision is there and then imports it on the way to its
    models; a None in `sys.modules` answers "no" to both, by the import system's own rules.

    Returns: whether one was hidden.
    """
    name = "torchvision"
    if name in sys.modules or importlib.util.find_spec(name) is None:
        return False
    try:
        importlib.import_module(name)
    except Exception:  # whatever its initialisation raises, it is unusable: OSError, RuntimeError, ImportError, ...
        for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[loaded]
        sys.modules[name] = None  # type: ignore[assignment]
        return True
    return False
