"""Fitting a network, or the linear logits that it starts from, to answers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from volition.autonomy import LogitAutonomy
from volition.costs import Cost
from volition.learners.aden.network import LEAST, ADENetwork
from volition.learners.aden.replay import Batch
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
#: numbers of the form: the chance to stay is 0, its slope by cost 1, the pull of other centres by
#: their cost from the prescribed one 2, by their cost to the entity 3; how costs follow the known
#: ones 4 to 6. Slopes that may be there, the others being zero
SLOPES = ((), (2,), (3,), (2, 3), (1, 2, 3))
#: how tailed the scatter of costs is
TAILS = 4.0
#: least scatter of costs, as a share
LEAST_SCATTER = 0.01
#: how much features of places must vary to be told apart
SAME = 1e-6
#: how far off the costs of a network that was trained elsewhere are thought to be, as a share
DOUBT = 0.05


class Lesson(NamedTuple):
    """A batch of answers as a network sees it."""

    X: Tensor  # (G, S, d)
    Y: Tensor  # (G, K, d)
    D: Tensor  # (G, S, K) costs of being served
    apart: Tensor  # (G, K, K) costs between centres
    prescribed: Tensor  # (G, S)
    target: Tensor  # (G, S)
    matches: Tensor  # (G, S, K)
    valid: Tensor  # (G, S)


def prepare(
    batch: Batch, X: FloatArray, cost: Cost, units: Units, dtype: torch.dtype, device: Any
) -> Lesson:
    """Return answers in the network's units."""
    G, S = batch.entities.shape
    K, d = batch.centers.shape[1:]
    x, y = torch.from_numpy(X[batch.entities]), torch.from_numpy(batch.centers)
    with torch.no_grad():
        D = cost.each(x.reshape(G * S, d), y.repeat_interleave(S, 0)).reshape(G, S, K)
        apart = cost.each(y.reshape(G * K, d), y.repeat_interleave(K, 0)).reshape(G, K, K)
        numbers = (units.points(x), units.points(y), D / units.cost, apart / units.cost)
    target = torch.from_numpy(batch.target) / units.cost
    points, centers, D, apart = (z.to(device, dtype) for z in numbers)
    prescribed, matches, valid = (
        torch.from_numpy(z).to(device) for z in (batch.prescribed, batch.matches, batch.valid)
    )
    target = target.to(device, dtype)
    return Lesson(points, centers, D, apart, prescribed, target, matches, valid)


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
        served, log_p = _served(network, lesson)
        return _surprise_nearby(served, log_p, network.form[2], network.unit, lesson)
    stay, leave, drawn = network.choices(lesson.X, lesson.Y, lesson.D, lesson.apart)
    return _surprise(log_choices(stay, leave, drawn, lesson.prescribed), lesson)


def _served(network: ADENetwork, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Return logarithms of costs of being served and of choices, (G, S, K) each."""
    served = network.log_served(lesson.X, lesson.Y, lesson.D)
    between = network.log_served(lesson.Y, lesson.Y, lesson.apart).exp()
    stay, leave, drawn = network.choices(lesson.X, lesson.Y, served.exp(), between)
    return served, log_choices(stay.clamp(-CLIP, CLIP), leave, drawn, lesson.prescribed)


def _surprise_nearby(
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

    def state(self) -> dict[str, np.ndarray]:
        """Return arrays to be saved."""
        arrays = {f"network.{k}": v.cpu().numpy() for k, v in self.network.state_dict().items()}
        for number, parameter in enumerate(self.network.parameters()):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                arrays[f"optimizer.{number}.{name}"] = value.cpu().numpy()
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Go back to a saved state."""
        weights: dict[str, Tensor] = {}
        moments: dict[str, Tensor] = {}
        for name, value in arrays.items():
            kind, _, rest = name.partition(".")
            (weights if kind == "network" else moments)[rest] = torch.from_numpy(value)
        self.network.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name, moment in moments.items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = moment.clone()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def judged(network: ADENetwork, lesson: Lesson) -> Tensor:
    """Return the loss of each answer without learning from it."""
    with torch.no_grad():
        return losses(network, lesson)


def mean_loss(
    network: ADENetwork, lesson_of: Callable[[IntArray], Lesson], groups: IntArray, n_groups: int
) -> float:
    """Return the mean loss of all answers."""
    total, n = 0.0, 0
    for lo in range(0, len(groups), n_groups):
        lesson = lesson_of(groups[lo : lo + n_groups])
        total += float(judged(network, lesson).sum())
        n += int(lesson.valid.sum())
    return total / max(n, 1)


def train_while_better(
    trainer: Trainer,
    lesson_of: Callable[[IntArray], Lesson],
    pool: IntArray,
    judges: Lesson,
    n_groups: int,
    rng: np.random.Generator,
) -> Tensor:
    """Train on groups of the pool as long as the judges' answers become likelier.

    Leaves the network as it was when they were likeliest; returns their losses then, one for each
    of their answers.
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
        factor = min(1.0, (step + 1) / look) * late * rate
        trainer.step(lesson_of(pick), factor, int(rng.integers(2**31)))
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


def fit_form(network: ADENetwork, lesson: Lesson) -> None:
    """Fit the numbers of a network of service: how costs follow the known ones, and choices costs.

    By maximum likelihood, with the function of places as it is. There are as few slopes, and as
    little changes of how costs follow the known ones, as the Bayesian information criterion allows.
    The lesson is in double precision.
    """
    n = max(2, int(lesson.valid.sum()))
    surprise, start = _by_numbers(network, lesson)
    with torch.no_grad():
        double = copy.deepcopy(network).double().requires_grad_(False)
        places = double.service(*double.known_places(lesson.X, lesson.Y))
        between = double.service(*double.known_places(lesson.Y, lesson.Y))

    def loss(theta: Tensor) -> Tensor:
        return (surprise(theta, places, between) + 1e-6 * theta.square().sum()) / n

    # Slopes cost something, and so does what is not left as it is.
    fits = [(2 * n * float(loss(start)) + math.log(n) * int(start[1:4].count_nonzero()), start)]
    number = torch.arange(7, device=start.device)
    for form in ((), (4, 5, 6)):
        theta = start
        for slopes in SLOPES:
            free = torch.isin(number, torch.tensor((0, *slopes, *form), device=start.device))
            fixed = torch.where((number > 3) | free, start, 0.0)
            fits.append(_descended(loss, theta, fixed, free, n))
            theta = fits[-1][1]
    _keep_numbers(network, min(fits, key=lambda fit: fit[0])[1])


def adjust_places(network: ADENetwork, given: Tensor, lesson: Lesson) -> None:
    """Adapt the function of places to few answers, and the numbers with it.

    The last layer alone moves. A priori costs by the weights that were given are right to within
    ``DOUBT``; the most likely ones are taken. The lesson is in double precision.
    """
    n = max(2, int(lesson.valid.sum()))
    surprise, start = _by_numbers(network, lesson)
    with torch.no_grad():
        double = copy.deepcopy(network).double().requires_grad_(False)
        Z, between = (
            double.service.features(*double.known_places(one, lesson.Y))
            for one in (lesson.X, lesson.Y)
        )
        now, bias = double.service.last.weight[0], double.service.last.bias
        given = given.to(now)
        about = Z[lesson.valid].flatten(0, 1)
        varied = float((about - about.mean(0)).square().sum(1).mean().sqrt())
    if not varied > SAME:  # nobody was asked, or only where it knows nothing
        return
    unit = DOUBT / varied
    mask = torch.ones(len(start) + len(given), dtype=torch.bool, device=start.device)
    mask[1:4] = start[1:4] != 0  # slopes that are not there stay away

    def loss(numbers: Tensor) -> Tensor:
        theta, moved = numbers[:7], numbers[7:]
        weights = given + unit * moved
        told = surprise(theta, Z @ weights + bias, between @ weights + bias)
        return (told + 0.5 * moved.square().sum() + 1e-6 * theta.square().sum()) / n

    first = torch.cat([start, (now - given) / unit])
    value, found = _descended(loss, first, first, mask, n)
    if math.isfinite(value):
        _keep_numbers(network, found[:7])
        with torch.no_grad():
            network.service.last.weight.copy_((given + unit * found[7:])[None])


def _by_numbers(
    network: ADENetwork, lesson: Lesson
) -> tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Tensor]:
    """Return the surprise of all answers as a function of the seven numbers, and these.

    The function takes what places add to the logarithms of costs as well: of centres to entities,
    and to centres.
    """
    double = copy.deepcopy(network).double().requires_grad_(False)
    start = torch.cat([double.linear, double.form])
    # At its floor the scatter has no slope to leave it by.
    start[6] = start[6].clamp(min=math.log(LEAST_SCATTER) + 0.1)
    double.linear.zero_()
    extras = double.choices(
        lesson.X, lesson.Y, torch.zeros_like(lesson.D), torch.zeros_like(lesson.apart)
    )
    known, apart = torch.log(lesson.D + LEAST), torch.log(lesson.apart + LEAST)

    def surprise(theta: Tensor, places: Tensor, between: Tensor) -> Tensor:
        stay, own, pair, entity, power, factor, scatter = theta
        served = power * known + factor + places
        C = served.exp()
        log_p = log_choices(
            (stay + own * C + extras[0]).clamp(-CLIP, CLIP),
            pair * (power * apart + factor + between).exp() + extras[1],
            entity * C + extras[2],
            lesson.prescribed,
        )
        return _surprise_nearby(served, log_p, scatter, double.unit, lesson).sum()

    return surprise, start


def _keep_numbers(network: ADENetwork, theta: Tensor) -> None:
    with torch.no_grad():
        network.linear.copy_(theta[:4])
        network.form.copy_(theta[4:])


def _descended(
    loss: Callable[[Tensor], Tensor], first: Tensor, fixed: Tensor, mask: Tensor, n: int
) -> tuple[float, Tensor]:
    """Return the criterion where the masked numbers are best, the others fixed; and all numbers."""
    theta = torch.where(mask, first, fixed).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta], max_iter=100, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(torch.where(mask, theta, fixed))
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    found = torch.where(mask, theta, fixed).detach()
    value = float(loss(found))
    if not math.isfinite(value):
        return math.inf, fixed
    return 2 * n * value + math.log(n) * int(mask.sum()), found


def calibrate(
    network: ADENetwork, lesson_of: Callable[[IntArray], Lesson], groups: IntArray, n_groups: int
) -> None:
    """Set the mean of costs: likelihood is about the middle of their scatter."""
    seen = expected = 0.0
    for lo in range(0, len(groups), n_groups):
        lesson = lesson_of(groups[lo : lo + n_groups])
        with torch.no_grad():
            served, log_p = _served(network, lesson)
            expected += float(((served + log_p).exp().sum(2) * lesson.valid).sum())
        seen += float(((lesson.target / network.unit + LEAST) * lesson.valid).sum())
    network.mean.fill_(seen / expected if expected > 0 and seen > 0 else 1.0)


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
