"""Bytes that CUDA's libraries keep of torch's memory once they have been used: fixed costs of every budget on a GPU.

torch gives cuBLAS, and through it cuBLASLt, one workspace per handle and stream, which stays for the rest of the run;
handles belong to threads. It is asked for by whichever matrix product comes first: unless that happens before anything
is measured and before an arena stands, it lies in that operator's mini-trace and inside the arena. cuDNN has no lasting
workspace, but makes its handle with its first convolution. Not run on a GPU yet.

Units: `_B` bytes, `_KiB` kibibytes.
"""

from __future__ import annotations

import os
import re
import threading

import torch

from lowtide.device.arena import nothing_engaged

_SIZE = 32  # of the matrices by which libraries are used for the first time
_HOPPER = 9  # compute capability from which torch gives cuBLAS more
_DEFAULT_KiB, _HOPPER_KiB = 2 * 4096 + 8 * 16, 32 * 1024
_LT_KiB = 1024
_lock = threading.Lock()
_held_B: dict[tuple[int, int, int], int] = {}  # GPU, thread, stream


def held_B(device: str) -> int:
    """Bytes that libraries hold for this thread and its current stream, which are in use afterwards if not before.

    Arguments:
        device: torch device type; only `"cuda"` has any.
    """
    if device != "cuda":
        return 0
    index = torch.cuda.current_device()
    place = (index, threading.get_ident(), torch.cuda.current_stream(index).cuda_stream)
    with _lock:
        if place not in _held_B:
            _held_B[place] = max(_first_used_B(index), configured_B(index))
        return _held_B[place]


def configured_B(index: int) -> int:
    """Bytes that torch is set up to give cuBLAS and cuBLASLt, for what was used before anybody looked.

    Source: `CUDABlas.cpp` and `CublasHandlePool.cpp` of torch 2.11.
    """
    wanted = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    pairs = re.findall(r":(\d+):(\d+)", wanted)
    blas_KiB = sum(int(size) * int(count) for size, count in pairs)
    if not pairs:
        blas_KiB = _HOPPER_KiB if torch.cuda.get_device_capability(index)[0] >= _HOPPER else _DEFAULT_KiB
    if os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1") == "1":
        return blas_KiB * 1024
    lt = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return (blas_KiB + (int(lt) if lt.isdigit() else _LT_KiB)) * 1024


def _first_used_B(index: int) -> int:
    """Uses every library once, and says what torch's allocator serves more than before."""
    with nothing_engaged(), torch.no_grad(), torch.autocast("cuda", enabled=False):
        torch.cuda.synchronize(index)
        before_B = torch.cuda.memory_allocated(index)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            square = torch.ones(_SIZE, _SIZE, dtype=dtype, device=f"cuda:{index}")
            torch.mm(square, square)
            torch.addmm(square[0], square, square)  # with a bias: cuBLASLt
            torch.bmm(square[None], square[None])
        if torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
            image = torch.ones(1, 1, _SIZE, _SIZE, device=f"cuda:{index}")
            torch.nn.functional.conv2d(image, image[..., :3, :3])
            del image
        del square
        torch.cuda.synchronize(index)
        return int(torch.cuda.memory_allocated(index) - before_B)
