"""From options to a learner."""

from __future__ import annotations

from typing import Any

from volition.cli.learn.options import LearnerOptions
from volition.cli.learn.source import Source
from volition.estimators import ADENClustering, ChoiceClustering, TabularClustering

AnyLearner = TabularClustering | ADENClustering | ChoiceClustering


def learner_from_options(options: LearnerOptions, source: Source) -> AnyLearner:
    """Return the learner that the options describe, for the number of centres in the files."""
    K = source.n_clusters if options.n_clusters is None else options.n_clusters
    if K is None:
        raise ValueError("--clusters is needed: the number of centres.")
    if source.n_clusters not in (None, K):
        raise ValueError(f"--clusters {K}, but there are {source.n_clusters} centres in the files.")
    given: dict[str, Any] = {
        "metric": source.metric,
        "n_interactions": "auto" if options.interactions is None else options.interactions,
        "random_state": options.seed,
    }
    if options.tol is not None:
        given["tol"] = options.tol
    if options.exploration is not None:
        given["exploration"] = options.exploration
    if options.name == "aden":
        return ADENClustering(K, network=options.network, **given)
    if options.name == "choice":
        return ChoiceClustering(K, **given)
    return TabularClustering(K, estimate=options.estimate, forgetting=options.forgetting, **given)
