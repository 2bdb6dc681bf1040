"""Fitting a network, or the linear logits that it starts from, to answers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from volition.autonomy import LogitAutonomy
from volition.io.files import expect
from volition.io.serialization import registered
from volition.learners.aden.lessons import Lesson, Lessons
from volition.learners.aden.network import LEAST, ADENetwork
from volition.learners.aden.units import Units
from volition.population import IntArray
from volition.validation import FloatArray

#: length of the gradient at which linear logits count as fitted
FLAT = 1e-7
CLIP = 60.0
#: steps between looks at the held-out answers, and looks without a gain after which training ends
LOOK, PATIENCE = 25, 3
#: steps by which costs of being served are learned, for each group of answers and at most; groups
#: per step; factor on the learning rate: a function of two places bears more than attention
STEPS_PER_GROUP, SERVICE_STEPS, SERVICE_GROUPS, SERVICE_RATE = 100, 4000, 16, 3.0
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


def losses(network: ADENetwork, lesson: Lesson) -> Tensor:
    """Return the loss of each answer, (G, S); zero where there is none.

    A network of costs is judged by squared errors. A network of choices by the likelihood of the
    cost: the chance of realising any of the clusters that cost as much; or of a cost near that.
    """
    if network.head == "costs":
        estimate = network.costs(lesson.X, lesson.Y, lesson.D)
        error = estimate.gather(2, lesson.prescribed[..., None])[..., 0] - lesson.target
        return error.square() * lesson.valid
    if network.head == "served":
        served, log_p = served_and_choices(network, lesson)
        return surprise_nearby(served, log_p, network.form[2], network.unit, lesson)
    stay, leave, drawn = network.choices(lesson.X, lesson.Y, lesson.D, lesson.apart)
    return _surprise(log_choices(stay, leave, drawn, lesson.prescribed), lesson)


def served_and_choices(network: ADENetwork, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Return logarithms of costs of being served and of choices, (G, S, K) each."""
    served = network.log_served(lesson.X, lesson.Y, lesson.D)
    between = network.log_served(lesson.Y, lesson.Y, lesson.apart).exp()
    stay, leave, drawn = network.choices(lesson.X, lesson.Y, served.exp(), between)
    return served, log_choices(stay.clamp(-CLIP, CLIP), leave, drawn, lesson.prescribed)


def surprise_nearby(
    served: Tensor, log_p: Tensor, scatter: Tensor, unit: Tensor, lesson: Lesson
) -> Tensor:
    """Costs scatter around those of the cluster that served; Student's t bears the odd one."""
    scatter = scatter.clamp(min=math.log(LEAST_SCATTER))
    # A few costs below nothing are noise.
    off = torch.log(lesson.target.clamp(min=0.0) / unit + LEAST)[..., None] - served
    density = -(TAILS + 1) / 2 * torch.log1p((off / scatter.exp()).square() / TAILS) - scatter
    return -(log_p + density).logsumexp(2) * lesson.valid


def _surprise(log_p: Tensor, lesson: Lesson) -> Tensor:
    told = lesson.valid & lesson.matches.any(2)
    # Rows without an answer take part as sure ones, so that no gradient is undefined.
    matches = lesson.matches | ~told[..., None]
    return -log_p.masked_fill(~matches, -torch.inf).logsumexp(2) * told


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
        self._losses = torch.compile(losses) if compiled else losses
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=learning_rate, weight_decay=weight_decay
        )
        self.n_steps = 0

    def step(self, lesson: Lesson, factor: float = 1.0, seed: int = 0) -> float:
        """Take a step at ``factor`` times the learning rate; return the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * factor
        self.network.train()
        cuda = lesson.X.device.type == "cuda"
        half = cuda and torch.cuda.is_bf16_supported()
        devices = [lesson.X.device] if cuda else []
        with torch.random.fork_rng(devices, enabled=self.network.size.dropout > 0):
            if self.network.size.dropout > 0:
                torch.manual_seed(seed)
            self.optimizer.zero_grad()
            with torch.autocast(lesson.X.device.type, torch.bfloat16, enabled=half):
                total = self._losses(self.network, lesson).sum()
            loss = total / lesson.valid.sum().clamp(min=1)
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


def judged(network: ADENetwork, lesson: Lesson) -> Tensor:
    """Return the loss of each answer without learning from it."""
    with torch.no_grad():
        return losses(network, lesson)


def clearly_better(losses: Tensor, others: Tensor) -> bool:
    """Whether answers, one by one, are likelier than with another network."""
    if not others.isfinite().all():
        return bool(losses.isfinite().all())
    gain = others - losses
    error = float(gain.std()) / math.sqrt(len(gain))
    return float(gain.mean()) > max(2.5 * error, 1e-4)


def mean_loss(network: ADENetwork, lessons: Lessons, groups: IntArray, n_groups: int) -> float:
    """Return the mean loss of all answers."""
    total, n = 0.0, 0
    for lo in range(0, len(groups), n_groups):
        lesson = lessons(groups[lo : lo + n_groups])
        total += float(judged(network, lesson).sum())
        n += int(lesson.valid.sum())
    return total / max(n, 1)


def train_while_better(
    trainer: Trainer,
    lessons: Lessons,
    pool: IntArray,
    judges: Lesson,
    n_groups: int,
    rng: np.random.Generator,
    gently: float = 1.0,
) -> Tensor:
    """Train on groups of the pool as long as the judges' answers become likelier.

    At ``gently`` times the usual rate. Leaves the network as it was when they were likeliest;
    returns their losses then, one for each of their answers.
    """
    network, told = trainer.network, judges.valid
    served = network.head == "served"
    most, rate = 20 * LOOK, 1.0
    if served:
        n_groups = SERVICE_GROUPS
        most = min(SERVICE_STEPS, max(most, STEPS_PER_GROUP * len(pool)))
        rate = 1.0 if network.attentive else SERVICE_RATE
    look = most // 20
    if not served:
        told = told & judges.matches.any(2)

    def kept() -> dict[str, Tensor]:
        return {name: value.clone() for name, value in network.state_dict().items()}

    best, state, since = judged(network, judges)[told], kept(), 0
    for step in range(most):
        pick = pool[rng.integers(0, len(pool), min(n_groups, len(pool)))]
        late = 0.5 * (1 + math.cos(math.pi * step / most)) if served else 1 / 3
        factor = min(1.0, (step + 1) / look) * late * rate * gently
        trainer.step(lessons(pick), factor, int(rng.integers(2**31)))
        if (step + 1) % look:
            continue
        now = judged(network, judges)[told]
        since += 1
        if now.mean() < best.mean():
            best, state, since = now, kept(), 0
        if since == PATIENCE:
            break
    network.load_state_dict(state)
    return best


@registered
class LogitFit(NamedTuple):
    """Linear logits fitted to answers: coefficients in the network's units, and their loss."""

    linear: FloatArray  # stay, own, pair, entity
    loss: float

    def autonomy(self, units: Units) -> LogitAutonomy:
        """Return the model in the user's units."""
        stay, *slopes = self.linear.tolist()
        return LogitAutonomy(stay, *(slope / units.cost + 0.0 for slope in slopes))


def fit_logits(lesson: Lesson, start: FloatArray | None = None) -> LogitFit:
    """Fit linear logits by maximum likelihood; terms that do not earn their keep are left out.

    A term is kept if it raises the log-likelihood by more than half the logarithm of the number of
    answers (the Bayesian information criterion).
    """
    n = int(lesson.valid.sum())
    best = _maximise(lesson, np.ones(4, dtype=bool), start)
    kept = np.ones(4, dtype=bool)
    while kept[1:].any():
        trials = []
        for term in np.flatnonzero(kept[1:]) + 1:
            fewer = kept.copy()
            fewer[term] = False
            trials.append((_maximise(lesson, fewer, best.linear), fewer))
        fit, fewer = min(trials, key=lambda trial: trial[0].loss)
        if n * (fit.loss - best.loss) > 0.5 * math.log(max(n, 2)):
            break
        best, kept = fit, fewer
    return best


def _maximise(lesson: Lesson, kept: np.ndarray, start: FloatArray | None) -> LogitFit:
    free = torch.from_numpy(kept)
    first = np.zeros(4) if start is None else start * kept
    linear = torch.tensor(first, dtype=torch.float64, requires_grad=True)
    n = lesson.valid.sum().clamp(min=1)
    optimizer = torch.optim.LBFGS(
        [linear], max_iter=100, tolerance_grad=FLAT, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        stay, own, pair, entity = linear * free
        log_p = log_choices(
            (stay + own * lesson.D).clamp(-CLIP, CLIP),
            pair * lesson.apart,
            entity * lesson.D,
            lesson.prescribed,
        )
        # A trace of a penalty keeps logits finite where everybody obeys.
        loss = _surprise(log_p, lesson).sum() / n + 1e-6 * linear.square().sum() / n
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    loss = float(closure().detach())
    return LogitFit((linear * free).detach().numpy().copy(), loss)
