"""Processes that talk to each other through gloo, on this machine, without a port of their own."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_s = 240


def on_two_ranks(work: Callable[[], Any], folder: Path) -> list[Any]:
    """Runs a function of a module in two processes of one group, and gives what each returned: `on_ranks`."""
    return on_ranks(work, folder, 2)


def on_ranks(work: Callable[[], Any], folder: Path, count: int) -> list[Any]:
    """Runs a function of a module in several processes of one group, and gives what each returned; None for one killed.

    Arguments:
        work: can be pickled, and so can what it returns.
        folder: empty; where the processes find each other.
    """
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in range(count)]
    store = str(folder / "store")
    processes = [
        spawn.Process(target=_process, args=(work, rank, count, store, sender), daemon=True)
        for rank, (_, sender) in enumerate(pipes)
    ]
    found = []
    try:
        for process in processes:
            process.start()
        for receiver, sender in pipes:
            sender.close()  # so that a process that dies ends the wait
            assert receiver.poll(PATIENCE_s), "a process says nothing"
            try:
                found.append(receiver.recv())
            except EOFError:
                found.append(None)
    finally:
        for process in processes:
            process.kill()
            process.join()
    for answer in found:
        assert not isinstance(answer, str), answer
    return found


def _process(work: Callable[[], Any], rank: int, count: int, store: str, answers: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        answers.send(work())
    except Exception:
        answers.send(traceback.format_exc())
    answers.close()
    os._exit(0)  # whatever the other one does
