"""Run a function over blocks of rows on all cores, and add what it returns in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, reduce
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

Block = TypeVar("Block")
Sums = tuple[Tensor, ...]

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _start_worker() -> None:
    # A worker works alone on its block: one intra-operation thread, no barrier after every step.
    torch.set_num_threads(1)
    # Denormal numbers slow every product down; to all sums they are zeros.
    torch.set_flush_denormal(True)


def _after_fork() -> None:
    """Use one thread in a forked child.

    Neither OpenMP's threads nor those of a pool live on in the child, but both believe that they
    do: torch's next step would wait for them for ever.
    """
    torch.set_num_threads(1)
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _pool(n_threads: int) -> ThreadPoolExecutor:
    key = (os.getpid(), n_threads)
    if key not in _pools:
        pool = ThreadPoolExecutor(n_threads, "volition", initializer=_start_worker)
        list(pool.map(lambda _: None, range(n_threads)))
        # The workers' setting is also the default of threads yet to come: put the user's back.
        torch.set_num_threads(n_threads)
        _pools[key] = pool
    return _pools[key]


def add_over_blocks(fn: Callable[[Block], Sums], blocks: Sequence[Block], parallel: bool) -> Sums:
    """Return the elementwise sum of ``fn(block)``; the order of addition never changes.

    Blocks are cut without regard to the number of threads, so the result does not depend on it.
    """
    n_threads = torch.get_num_threads()
    if parallel and len(blocks) > 1 and n_threads > 1:
        parts = list(_pool(n_threads).map(fn, blocks))
    else:
        parts = [fn(block) for block in blocks]
    return add_up(parts)


def add_up(parts: Iterable[Sums]) -> Sums:
    """Return the elementwise sum of tuples of tensors, added in order."""
    return reduce(lambda total, part: tuple(map(torch.add, total, part)), parts)


@contextmanager
def threads_for(n_blocks: int) -> Iterator[None]:
    """Use one thread while there is one block: small steps would only wait for each other."""
    before = torch.get_num_threads()
    if n_blocks > 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        # SciPy's quasi-Newton steps are tiny too, and its BLAS threads wait by spinning.
        with _blas().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
