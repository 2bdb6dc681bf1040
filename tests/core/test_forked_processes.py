"""Forked children, multiprocessing's default on Linux, can use what the parent has fitted."""

import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import multiprocessing, sys
    import numpy as np, torch
    from volition import AutonomyAwareClustering, DistanceAutonomy, Passive
    from volition.datasets import make_city
    from volition.io.models import load_model, save_model

    torch.set_num_threads(2)  # whatever the machine has: the parent's threads are the trouble
    how, path = sys.argv[1:]
    X = make_city(140_000, random_state=0)
    torch.ones(1_000_000).exp().sum()  # OpenMP's threads are started
    if how == "load":
        small = AutonomyAwareClustering(4, n_init=1, random_state=0).fit(X[:500])
        save_model(small, path)
        model = load_model(path)
    else:
        gamma = 0.5 if how == "entity" else 0.0
        autonomy = DistanceAutonomy(0.2, gamma=gamma)
        model = AutonomyAwareClustering(4, autonomy=autonomy, time_budget=2, random_state=0).fit(X)
    here = model.predict(X)

    def child(queue):
        there = model.predict(X)
        again = AutonomyAwareClustering(3, autonomy=model.autonomy, n_init=1, time_budget=2).fit(X)
        queue.put((bool((there == here).all()), bool(np.isfinite(again.distortion_))))

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get(timeout=40))
    process.join()
    assert torch.get_num_threads() == 2  # the parent goes on as before
    assert (model.predict(X) == here).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("how", ["fit", "entity", "load"])
def test_a_forked_child_predicts_and_fits(how, tmp_path):
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT), how, str(tmp_path / "m.safetensors")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
