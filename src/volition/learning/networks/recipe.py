"""How a network is trained: all of the paper's hyperparameters, and a few more."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from volition.core.validation import check_integer, check_scalar
from volition.io.serialization import registered
from volition.learning.networks.network import HEADS, NetworkSize


def check_head(head: Any) -> None:
    """Raise an error unless this is a head, or left to the first answers."""
    if head not in ("auto", *HEADS):
        raise ValueError(f"head must be 'auto' or one of {HEADS}, got {head!r}.")


@registered
@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of Algorithm 2; defaults are those of the preset ``"cpu"``.

    Symbols in brackets are the paper's (table "Hyperparameters").

    Parameters
    ----------
    hidden_dim, ff_dim, n_blocks, n_heads : int
        Size of the network [d_h, d_FF, L, attention heads].
    dropout : float
        In blocks and head.
    n_layouts : int
        Perturbed sets of centres per batch of questions [B].
    n_samples : int
        Entities asked about each of them [S].
    n_draws : int
        Questions per entity and prescription, whose costs are averaged [L-hat].
    exploration : float
        Share of prescriptions drawn blindly, the others from the Gibbs policy [epsilon].
    spread : float or None
        Standard deviation of the perturbation of the centres [sigma]. None: about the width of a
        cluster at the present beta, 1.5 / sqrt(2 beta), within 5 to 15 % of the data's range.
    replicas : int
        Sets of centres that are annealed side by side on one network; the one with the least
        observed cost is kept.
    replay : int
        Batches that training looks back to, the newest included; 1 for the newest alone.
    learning_rate, weight_decay : float
        Of AdamW [eta_d, weight decay]. Centres have no weight decay.
    warm_up : bool
        Whether the learning rate rises at first and then falls along a cosine.
    clip : float or None
        Gradients of the network longer than this are shortened; None for as they are.
    ema : float
        Share of the old in the running mean of each pair's costs that the network is trained on
        [lambda]; 0 for the costs themselves.
    epochs : int
        Batches of questions per beta [T_d].
    updates : int
        Steps of AdamW per batch of questions.
    service_steps : int
        Steps by which costs of being served are learned, at most; fewer while answers are few, and
        none that no longer help.
    center_epochs : int
        Steps of the centres per beta [T_y].
    center_rate : float or None
        Step size of the centres [eta_y]; None for quasi-Newton steps within reach of the data.
    refinements : int
        Rounds after the last beta, each with as many answers as a beta. They ask what the plan
        costs nearby, and a line through the network's errors corrects the slope by which the
        centres move. 0 for none, as published.
    beta_min, beta_max : float or None
        Ends of the annealing; None to choose them from the data.
    tau : float
        Factor between betas.
    standardize : bool
        Whether the network sees data centred and divided by their spread.
    head : {"auto", "choices", "service", "costs"}
        What the network estimates; see `ADENClustering`.
    compile : bool
        Whether steps of a network of expected costs are compiled (`torch.compile`; on CPUs that
        needs a C++ compiler). It takes half a minute and pays in long runs with many centres.

    Examples
    --------
    >>> from volition.learning.networks import PRESETS
    >>> PRESETS["paper"].n_draws, PRESETS["cpu"].n_draws
    (16, 1)
    """

    hidden_dim: int = 32
    ff_dim: int = 64
    n_blocks: int = 2
    n_heads: int = 4
    dropout: float = 0.0
    n_layouts: int = 64
    n_samples: int = 64
    n_draws: int = 1
    exploration: float = 0.3
    spread: float | None = None
    replicas: int = 3
    replay: int = 60
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    warm_up: bool = True
    clip: float | None = 1.0
    ema: float = 0.0
    epochs: int = 15
    updates: int = 10
    service_steps: int = 4000
    center_epochs: int = 15
    center_rate: float | None = None
    refinements: int = 2
    beta_min: float | None = None
    beta_max: float | None = None
    tau: float = 1.8
    standardize: bool = True
    head: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        self.size()
        for name in ("n_layouts", "n_samples", "n_draws", "replicas", "replay", "epochs"):
            check_integer(getattr(self, name), name, 1)
        for name in ("updates", "service_steps", "center_epochs", "refinements"):
            check_integer(getattr(self, name), name, 0)
        check_scalar(self.exploration, "exploration", 0, 1)
        check_scalar(self.ema, "ema", 0, 1)
        check_scalar(self.weight_decay, "weight_decay", 0)
        for name in ("learning_rate", "clip", "spread", "center_rate", "beta_min", "beta_max"):
            if getattr(self, name) is not None:
                check_scalar(getattr(self, name), name, 0, open_low=True)
        check_scalar(self.tau, "tau", 1, open_low=True)
        low, high = self.beta_min, self.beta_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"beta_min={low!r} and beta_max={high!r} must be in order.")
        check_head(self.head)
        for name in ("warm_up", "standardize", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")

    def size(self) -> NetworkSize:
        """Return the size of the network."""
        names = [field.name for field in fields(NetworkSize)]
        return NetworkSize(**{name: getattr(self, name) for name in names})

    @property
    def n_questions(self) -> int:
        """Questions in a batch."""
        return self.n_layouts * self.n_samples * self.n_draws


PRESETS = {
    "cpu": Recipe(),
    # Table "Hyperparameters", column of the small data set. Dropout and epsilon are not in it.
    "paper": Recipe(
        hidden_dim=64, ff_dim=128, n_blocks=4, n_heads=8, dropout=0.1, n_layouts=32, n_samples=128,
        n_draws=16, exploration=0.1, spread=0.01, replicas=1, replay=1, learning_rate=1e-4,
        weight_decay=1e-5, warm_up=False, clip=None, ema=0.95, epochs=1000, updates=1,
        center_epochs=100, center_rate=1e-4, refinements=0, beta_min=10.0, beta_max=50_000.0,
        tau=1.1, standardize=False, head="costs",
    ),
}  # fmt: skip


def resolve_recipe(preset: Any) -> Recipe:
    """Return the recipe that a preset's name stands for, or the recipe itself."""
    if isinstance(preset, Recipe):
        return preset
    if isinstance(preset, str) and preset in PRESETS:
        return PRESETS[preset]
    names = ", ".join(repr(name) for name in PRESETS)
    raise ValueError(f"preset must be one of {names} or a Recipe, got {preset!r}.")
