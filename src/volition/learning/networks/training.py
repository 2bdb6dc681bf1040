"""Fitting a network to answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from volition.choices.selection import clearly_better as more_likely
from volition.io.checked_files import expect
from volition.learning.networks.network import LEAST, ADENetwork
from volition.learning.networks.recipe import Recipe
from volition.learning.networks.training_data import TrainingBatch, TrainingData
from volition.populations.answers import IntArray

CLIP = 60.0
#: steps between looks at the held-out answers, and looks without a gain after which training ends
LOOK, PATIENCE = 25, 3
#: steps by which costs of being served are learned, for each group of answers; groups per step;
#: factor on the learning rate: a function of two places bears more than attention
STEPS_PER_GROUP, SERVICE_GROUPS, SERVICE_RATE = 100, 16, 3.0
#: how tailed the scatter of costs is
TAILS = 4.0
#: least scatter of costs, as a share
LEAST_SCATTER = 0.01


def log_choices(stay: Tensor, leave: Tensor, drawn: Tensor, prescribed: Tensor) -> Tensor:
    """Return log p(k | j, i) for the prescriptions that were made, (G, S, K)."""
    if drawn.shape[2] == 1:
        return torch.zeros_like(drawn)
    j = prescribed[..., None]
    logits = leave.gather(1, j.expand_as(drawn)) + drawn
    away = logits.scatter(2, j, -torch.inf).log_softmax(2)
    stays = stay.gather(2, j)
    return (away + F.logsigmoid(-stays)).scatter(2, j, F.logsigmoid(stays))


def answer_losses(network: ADENetwork, batch: TrainingBatch) -> Tensor:
    """Return the loss of each answer, (G, S); zero where there is none.

    A network of costs is judged by squared errors. A network of choices by the likelihood of the
    cost: the chance of realising any of the clusters that cost as much; or of a cost near that.
    """
    if network.head == "costs":
        estimate = network.costs(batch.X, batch.Y, batch.D)
        error = estimate.gather(2, batch.prescribed[..., None])[..., 0] - batch.target
        return error.square() * batch.valid
    if network.head == "service":
        service, log_p = service_costs_and_choices(network, batch)
        return service_losses(service, log_p, network.cost_law[2], network.unit, batch)
    stay, leave, drawn = network.choices(batch.X, batch.Y, batch.D, batch.apart)
    return choice_losses(log_choices(stay, leave, drawn, batch.prescribed), batch)


def service_costs_and_choices(network: ADENetwork, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
    """Return logarithms of costs of being served and of choices, (G, S, K) each."""
    service = network.log_service_costs(batch.X, batch.Y, batch.D)
    between = network.log_service_costs(batch.Y, batch.Y, batch.apart).exp()
    stay, leave, drawn = network.choices(batch.X, batch.Y, service.exp(), between)
    return service, log_choices(stay.clamp(-CLIP, CLIP), leave, drawn, batch.prescribed)


def service_losses(
    log_costs: Tensor, log_p: Tensor, scatter: Tensor, unit: Tensor, batch: TrainingBatch
) -> Tensor:
    """Costs scatter around those of the cluster that served; Student's t bears the odd one."""
    scatter = scatter.clamp(min=math.log(LEAST_SCATTER))
    # A few costs below nothing are noise.
    told = batch.target.isfinite()
    target = torch.where(told, batch.target, 0.0)
    off = torch.log(target.clamp(min=0.0) / unit + LEAST)[..., None] - log_costs
    density = -(TAILS + 1) / 2 * torch.log1p((off / scatter.exp()).square() / TAILS) - scatter
    # A choice that was told without its cost counts as a choice.
    joint = log_p + density * told[..., None]
    return -of_candidates(joint, batch).logsumexp(2) * batch.valid


def choice_losses(log_p: Tensor, batch: TrainingBatch) -> Tensor:
    """Return how unlikely each choice was (negative log likelihood), (G, S)."""
    told = batch.valid & batch.candidates.any(2)
    return -of_candidates(log_p, batch).logsumexp(2) * told


def of_candidates(log_p: Tensor, batch: TrainingBatch) -> Tensor:
    """Return logarithms of probabilities, minus infinity for clusters that cannot have served."""
    told = batch.valid & batch.candidates.any(2)
    # Rows without an answer take part as sure ones, so that no gradient is undefined.
    candidates = batch.candidates | ~told[..., None]
    return log_p.masked_fill(~candidates, -torch.inf)


def check_compiler() -> None:
    """Raise an error with one sentence where `torch.compile` does not work."""
    try:
        torch.compile(torch.sin)(torch.ones(2))
    except Exception as error:  # whatever a compiler or its absence may raise
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"compile=True needs a C++ compiler that works: {reason}.") from None


class Trainer:
    """AdamW on a network, one step at a time; its state can be saved."""

    def __init__(
        self,
        network: ADENetwork,
        learning_rate: float,
        weight_decay: float,
        clip: float | None = 1.0,
        compiled: bool = False,
    ) -> None:
        self.network, self.rate, self.clip = network, learning_rate, clip
        self._losses = torch.compile(answer_losses) if compiled else answer_losses
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=learning_rate, weight_decay=weight_decay
        )
        self.n_steps = 0

    def step(self, batch: TrainingBatch, factor: float = 1.0, seed: int = 0) -> float:
        """Take a step at ``factor`` times the learning rate; return the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * factor
        self.network.train()
        cuda = batch.X.device.type == "cuda"
        half = cuda and torch.cuda.is_bf16_supported()
        devices = [batch.X.device] if cuda else []
        with torch.random.fork_rng(devices, enabled=self.network.size.dropout > 0):
            if self.network.size.dropout > 0:
                torch.manual_seed(seed)
            self.optimizer.zero_grad()
            with torch.autocast(batch.X.device.type, torch.bfloat16, enabled=half):
                total = self._losses(self.network, batch).sum()
            loss = total / batch.valid.sum().clamp(min=1)
            loss.backward()  # type: ignore[no-untyped-call]
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
            self.optimizer.step()
        self.network.eval()
        self.n_steps += 1
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """Return what is to be saved."""
        moments = [
            {name: value.cpu().numpy() for name, value in self.optimizer.state.get(one, {}).items()}
            for one in self.network.parameters()
        ]
        return {"network": self.network, "moments": moments, "n_steps": self.n_steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved state."""
        self.network.load_state_dict(state["network"].state_dict())
        moments: dict[int, dict[str, Tensor]] = {}
        parameters = enumerate(self.network.parameters())
        for (number, parameter), one in zip(parameters, state["moments"], strict=True):
            for name in one:
                shape = () if name == "step" else tuple(parameter.shape)
                moment = torch.from_numpy(expect(one, name, shape))
                moments.setdefault(number, {})[name] = moment.clone()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.n_steps = state["n_steps"]


def evaluate(network: ADENetwork, batch: TrainingBatch) -> Tensor:
    """Return the loss of each answer without learning from it."""
    with torch.no_grad():
        return answer_losses(network, batch)


def clearly_better(losses: Tensor, others: Tensor) -> bool:
    """Whether answers, one by one, are likelier than with another network."""
    new, old = (-z.double().cpu().numpy() for z in (losses, others))
    if not np.isfinite(old).all():
        return bool(np.isfinite(new).all())
    return more_likely(new, old, np.arange(len(new)))


def mean_loss(network: ADENetwork, data: TrainingData, groups: IntArray, n_groups: int) -> float:
    """Return the mean loss of all answers."""
    total, n = 0.0, 0
    for lo in range(0, len(groups), n_groups):
        batch = data(groups[lo : lo + n_groups])
        total += float(evaluate(network, batch).sum())
        n += int(batch.valid.sum())
    return total / max(n, 1)


def train_while_better(
    trainer: Trainer,
    data: TrainingData,
    pool: IntArray,
    judges: TrainingBatch,
    recipe: Recipe,
    rng: np.random.Generator,
) -> Tensor:
    """Train on groups of the pool as long as the judges' answers become likelier.

    Leaves the network as it was when they were likeliest; returns their losses then, one for each
    of their answers.
    """
    n_groups = recipe.n_layouts
    network, told = trainer.network, judges.valid
    service = network.head == "service"
    most, rate = 20 * LOOK, 1.0
    if service:
        n_groups = SERVICE_GROUPS
        most = min(recipe.service_steps, max(most, STEPS_PER_GROUP * len(pool)))
        rate = 1.0 if network.attentive else SERVICE_RATE
    look = max(1, most // 20)
    if not service:
        told = told & judges.candidates.any(2)

    def kept() -> dict[str, Tensor]:
        return {name: value.clone() for name, value in network.state_dict().items()}

    best, state, since = evaluate(network, judges)[told], kept(), 0
    for step in range(most):
        pick = pool[rng.integers(0, len(pool), min(n_groups, len(pool)))]
        late = 0.5 * (1 + math.cos(math.pi * step / most)) if service else 1 / 3
        factor = min(1.0, (step + 1) / look) * late * rate
        trainer.step(data(pick), factor, int(rng.integers(2**31)))
        if (step + 1) % look:
            continue
        now = evaluate(network, judges)[told]
        since += 1
        if now.mean() < best.mean():
            best, state, since = now, kept(), 0
        if since == PATIENCE:
            break
    network.load_state_dict(state)
    return best
