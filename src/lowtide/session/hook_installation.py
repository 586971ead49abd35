"""Installs the hooks by which transformers collects hidden states, where a capture met their installation.

transformers installs them in the first forward that is asked for such outputs, under a lock. Dynamo can trace neither
the lock nor the installation. It computes nothing, and transformers does it once for each model, so doing it before the
capture leaves the model as its own first forward would.
"""

from __future__ import annotations

import sys

import torch

_MODULE = "transformers.utils.output_capturing"
_INSTALLS = "maybe_install_capturing_hooks"
_INSTALLED = "_output_capturing_hooks_installed"


def install_output_hooks(module: torch.nn.Module, failure: BaseException) -> bool:
    """Installs the hooks in a model, if a capture of it failed at their installation.

    Arguments:
        failure: Dynamo's, with the stack of the code that it traced.

    Returns: whether hooks were installed, so that another attempt makes sense.
    """
    install = getattr(sys.modules.get(_MODULE), _INSTALLS, None)
    if install is None or _INSTALLS not in {f.name for f in getattr(failure, "real_stack", None) or ()}:
        return False
    kind = sys.modules["transformers.modeling_utils"].PreTrainedModel
    without = [m for m in module.modules() if isinstance(m, kind) and not getattr(m, _INSTALLED, False)]
    for model in without:
        install(model)
    return bool(without)
