"""A network that a user gives a learner to start from."""

from __future__ import annotations

from os import PathLike
from typing import Any

from volition.learning.networks.network import ADENetwork, load_network


def resolve_network(network: Any, n_features: int) -> ADENetwork:
    """Return the network that a user gives, or raise one sentence.

    Parameters
    ----------
    network : path or ADENetwork
        A file that ``save_network`` wrote, or the network itself.
    n_features : int
        Features of the entities.

    Returns
    -------
    ADENetwork
    """
    if not isinstance(network, (str, PathLike, ADENetwork)):
        raise ValueError(f"network must be a path or an ADENetwork, got {network!r}.")
    given = network if isinstance(network, ADENetwork) else load_network(network)
    if given.n_features != n_features:
        raise ValueError(f"The network knows {given.n_features} features, but X has {n_features}.")
    return given
