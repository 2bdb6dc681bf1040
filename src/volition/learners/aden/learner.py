"""`ADENClustering`: learn from costs alone (Algorithm 2, and a recipe that needs far less).

Answers are asked for at perturbed centres, in stages. What a stage is depends on what the costs
say. Where the metric is known, a cost usually tells which centre has served: the network then
learns choices by likelihood, centres are searched for on what it has learned, and the next stage
asks around the best of them. Where costs match no centre (noise, a travel time that only the
population knows) it learns what being served costs, too. Where costs are negative the network
learns expected costs by squared errors, as published, and the centres follow the network's free
energy down while beta rises, one beta per stage.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import torch

from volition.autonomy import Autonomy
from volition.choices import Choices
from volition.learners.aden.annealed import (
    averaged,
    blended,
    cheapest,
    descended,
    distinct,
    ladder,
)
from volition.learners.aden.checkpoint import restore, state_of
from volition.learners.aden.lessons import Lessons, prepare
from volition.learners.aden.models import NetworkAutonomy
from volition.learners.aden.network import HEADS, ADENetwork, load_network, save_network
from volition.learners.aden.observed import Cheapest
from volition.learners.aden.recipe import Recipe, check_head, resolve_recipe
from volition.learners.aden.replay import Batch, Replay
from volition.learners.aden.service import ServiceFit
from volition.learners.aden.training import (
    LogitFit,
    Trainer,
    check_compiler,
    clearly_better,
    fit_logits,
    judged,
    mean_loss,
    train_while_better,
)
from volition.learners.aden.units import Units
from volition.learners.aden.watchful import WatchfulLearner
from volition.learners.ledger import Asked
from volition.learners.monitor import Change
from volition.learners.staged import ROAMING, ROWS, WATCHED
from volition.phase import first_beta
from volition.population import IntArray, Response
from volition.portfolio import canonical_order, thin
from volition.validation import FloatArray, check_integer, check_scalar

#: by how much a cost may differ from a distance and still be it, as a share
EXACT = 1e-6
#: share of answers that must match a distance
MATCHED = 0.99
#: one group of answers in so many is held out to judge the network
HELD_OUT = 6
#: entities by which centres are moved, at most
MOVED_BY = 3000
#: share of the data's range by which centres may be outside of it, unless as published
BOX = 0.1
#: by how many units all costs are off the known ones to be so in common
MUCH = 1.0
#: hidden numbers of a step on expected costs from which more than one thread pays
LARGE_STEP = 1_000_000
#: a network keeps its units if the data lie within so many times their length, and are no smaller
NEARBY, SMALLEST = 3.0, 0.1


class ADENClustering(WatchfulLearner):
    """Learn centres and prescriptions from costs alone, with a network that sees the centres.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served, as far as it is known: the network's baseline. Costs that the
        population reports may be others.
    preset : {"cpu", "paper"} or Recipe, default="cpu"
        Size of the network and how it is trained; see `Recipe`.
    head : {"auto", "choices", "served", "costs"} or None
        What the network estimates: p(k | j, i), which needs costs that tell which centre has
        served; that and the costs of being served; or expected costs, as published. "auto" looks
        at the first answers. None: as the preset says.
    network : path or ADENetwork, optional
        A network to start from, trained on this problem or another one of as many features. One
        that knows costs of being served keeps its places if the entities are among them.
    n_interactions : int or "auto", default="auto"
        Questions that a fit may ask. By default they are asked until the centres no longer improve
        by more than ``tol``, at most 100,000; a network of expected costs asks about a million, in
        equal parts for each beta.
    tol : float, default=0.001
        Share by which centres must improve from one stage to the next, or the fit ends.
    device : str, default="cpu"
        Where the network is trained.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (K, d)
    labels_ : ndarray of shape (n,)
        Best prescription for each entity, -1 for those that left.
    distortion_ : float
        Distortion as the network sees it. See `distortion_estimate` for one from answers alone.
    head_ : str
        What the network estimates; "undecided" before the first answers.
    model_ : Autonomy or None
        What was learned, as an autonomy model: usable wherever one is.
    network_ : ADENetwork or None
    transferred_ : bool
        Whether what is known rests on a network that was given: False if there was none, if it was
        given up for one that was learned here, or if something simpler explains the answers as
        well.
    beta_ : float
    n_interactions_, n_answers_, n_repeated_ : int
    history_ : list of dict
    stop_reason_ : str or None
    interrupted_ : bool
        As in `TabularClustering`; the history has the loss too.

    Examples
    --------
    >>> from volition import ADENClustering, DistanceAutonomy, SimulatedPopulation
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data
    >>> truth = DistanceAutonomy(0.3, temperature=0.01)
    >>> people = SimulatedPopulation(X, truth, reveal="cost", random_state=0)
    >>> model = ADENClustering(4, n_interactions=4000, random_state=0).fit(X, population=people)
    >>> model.cluster_centers_.shape, model.head_
    ((4, 2), 'choices')
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Any = "sqeuclidean",
        preset: str | Recipe = "cpu",
        head: str | None = None,
        network: Any = None,
        n_interactions: int | str = "auto",
        tol: float = 1e-3,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.preset = preset
        self.head = head
        self.network = network
        self.n_interactions = n_interactions
        self.tol = tol
        self.device = device
        self.random_state = random_state

    def _params(self) -> dict[str, Any]:
        return super()._params() | {"network": None}  # the state has its own

    @property
    def exploration(self) -> float:  # type: ignore[override]
        """Share of prescriptions that are drawn blindly."""
        return resolve_recipe(self.preset).exploration

    # -- beginning --------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._recipe = recipe = resolve_recipe(self.preset)
        check_scalar(self.tol, "tol", 0)
        if self.n_interactions != "auto":
            check_integer(self.n_interactions, "n_interactions", 1, " or 'auto'")
        if recipe.compile:
            check_compiler()  # before anybody is asked
        head = recipe.head if self.head is None else self.head
        check_head(head)
        if not isinstance(self.device, str | torch.device):
            raise ValueError(f"device must be a name such as 'cpu', got {self.device!r}.")
        try:
            self._device = torch.device(self.device)
            torch.zeros(1, device=self._device)
        except (RuntimeError, AssertionError, TypeError) as error:
            why = str(error).splitlines()[0].split(". ")[0].rstrip(".")
            raise ValueError(f"device={self.device!r} cannot be used: {why}.") from None
        n, d = self._X.shape
        K = self.n_clusters
        base = self._begin_stages()
        mean = self.cluster_centers_[0]
        self._units = Units(mean, base.scale, base.cost_scale)
        if not recipe.standardize:
            self._units = Units(np.zeros(d), 1.0, 1.0)
        self._betas = ladder(recipe, first_beta(base), K, d)
        self.beta_ = self._betas[0]
        R = recipe.replicas
        self._replicas = self._first_replicas(mean)
        self._replay = Replay(K, d, recipe.n_samples, recipe.replay * recipe.n_layouts)
        if recipe.ema > 0:
            self._means = np.zeros((n, K))
        self._debt = 0.0
        self._verdict = np.zeros((R, 3))
        self._turn = 0
        self._loss = math.nan
        self._phase = "probe"
        self._cheapest, self._unseen = Cheapest(), False
        self._watched_from = None
        self._logits: LogitFit | None = None
        self._trainer: Trainer | None = None
        self.head_ = "undecided"
        # A state that is being restored has a network of its own.
        given = None if self._restoring else self._given_network(d)
        if given is not None and head not in ("auto", given.head):
            whose = "" if self.head is not None else "the preset's "
            raise ValueError(f"{whose}head={head!r}, but the network is one of {given.head}.")
        self._began_trained = self._transferred = given is not None
        #: weights of places as they were given, to which few answers add
        self._given_places = torch.zeros(0)
        if given is not None and given.head == "served":
            self._given_places = given.service.last.weight[0].detach().cpu().double().clone()
        if given is not None and given.head == "served" and given.units is not None:
            # What being served costs depends on where one is: the places are to be the same.
            origin, length, _ = given.units
            here = self._X[self._weight > 0]
            nearby = np.linalg.norm(here - origin, axis=1).mean() <= NEARBY * length
            if nearby and base.scale >= SMALLEST * length:
                self._units = given.units
        self._wanted = head
        if not self._restoring and (given is not None or head != "auto"):
            self._decide(head if given is None else given.head, given)
        self._relabel()

    def _first_replicas(self, mean: FloatArray) -> FloatArray:
        """Return sets of centres around a place."""
        noise = self._recipe.spread or 0.05 * self._scale
        shape = (self._recipe.replicas, self.n_clusters, self._X.shape[1])
        return mean + noise * self._rng.standard_normal(shape)

    def _given_network(self, n_features: int) -> ADENetwork | None:
        if self.network is None:
            return None
        if not isinstance(self.network, (str, PathLike, ADENetwork)):
            raise ValueError(f"network must be a path or an ADENetwork, got {self.network!r}.")
        given = self.network if isinstance(self.network, ADENetwork) else load_network(self.network)
        if given.n_features != n_features:
            raise ValueError(
                f"The network knows {given.n_features} features, but X has {n_features}."
            )
        return given

    def _decide(self, head: str, given: ADENetwork | None = None) -> None:
        """Settle what the network estimates, and begin with it."""
        self.head_ = head
        seed = int(self._rng.integers(2**31))
        size = self._recipe.size() if given is None else given.size
        network = ADENetwork(self._X.shape[1], size, head, seed)
        if given is not None:
            network.load_state_dict(given.state_dict())
        network.units = self._units
        self._trained = given is not None
        self._trainer = self._new_trainer(network)
        self._phase = "anneal" if head == "costs" else "explore"
        if head == "costs":
            if self._stage:  # something else was tried before
                mean = np.average(self._X, axis=0, weights=self._weight)
                self._replicas = self._first_replicas(mean)
            self._told = self._stage = 0
            self.beta_ = self._betas[0]
        if head == "costs" or given is not None:
            self._model_from_network()

    def _new_trainer(self, network: ADENetwork) -> Trainer:
        recipe = self._recipe
        network = network.to(self._device).eval()
        # The other heads' networks are trained afresh at each stage, for too short a time.
        compiled = recipe.compile and network.head == "costs"
        return Trainer(network, recipe.learning_rate, recipe.weight_decay, recipe.clip, compiled)

    @property
    def network_(self) -> ADENetwork | None:
        """The network as trained so far."""
        return None if self._trainer is None else self._trainer.network

    @property
    def transferred_(self) -> bool:
        """Whether what is known rests on a network that was given."""
        return self._transferred and isinstance(self._unattached, NetworkAutonomy)

    def _model_from_network(self) -> None:
        assert self._trainer is not None
        self.model_ = NetworkAutonomy(self._trainer.network.cpu(), self._units)
        self._trainer.network.to(self._device)

    def _few_threads(self) -> AbstractContextManager[None]:
        recipe = self._recipe
        numbers = recipe.n_layouts * recipe.n_samples * recipe.hidden_dim * recipe.n_blocks
        if self.head_ == "costs" and numbers >= LARGE_STEP:
            return nullcontext()
        return super()._few_threads()

    def _admit(self, first: int) -> None:
        if self._recipe.ema > 0:
            more = np.zeros((len(self._X) - first, self.n_clusters))
            self._means = np.concatenate([self._means, more])
        self._forget_costs()
        super()._admit(first)

    def remove_entities(self, entities: Any) -> ADENClustering:
        """Let entities go; see `Learner.remove_entities`."""
        super().remove_entities(entities)
        self._forget_costs()
        return self

    # -- asking -----------------------------------------------------------------------------------

    def _draw_entities(self, n: int) -> IntArray:
        draws = self._recipe.n_draws
        return np.repeat(super()._draw_entities(-(-n // draws)), draws)[:n]

    def _spread(self) -> float:
        """Return the standard deviation of the perturbation of the centres."""
        if self._recipe.spread is not None:
            return self._recipe.spread
        if self._phase == "explore":
            return super()._spread()
        width = 1.5 / math.sqrt(2 * self.beta_)
        if not self._cost.mean_is_optimal:
            # Beta is per unit of cost; a length is wanted.
            width *= self._scale / math.sqrt(self._cost_unit)
        return min(max(width, 0.05 * self._range), 0.15 * self._range)

    @property
    def _draws(self) -> int:
        return self._recipe.n_draws

    def _next_layout(self) -> None:
        number = int(self._rng.integers(len(self._replicas)))
        roam = self._phase == "probe" or (
            self._phase == "explore" and (self._stage == 0 or self._rng.random() < ROAMING)
        )
        watched = self._recipe.spread is None and self._rng.random() < 1 / WATCHED
        self._exact = self._phase == "judge" or (watched and not roam and self.model_ is not None)
        if self._watching or (self.head_ == "served" and self._unseen):
            self._exact, roam = True, False
        self._unseen = False
        if roam:
            self._shown = self._roaming()
        elif self._phase == "judge":
            self._turn += 1
            self._shown = self._replicas[self._turn % len(self._replicas)].copy()
        elif self._exact:
            self._shown = self.cluster_centers_.copy()
        else:
            self._shown = self._near(self._replicas[number])
        if not self._exact:
            self._shown = self._within(self._shown)
        self._left = self._per_layout * self._recipe.n_draws

    def _choose(
        self, entities: IntArray, blind: np.ndarray
    ) -> tuple[IntArray, Any, Any, FloatArray]:
        # Replicas are compared by the best that each can do, not by what exploring costs.
        judging = self._phase == "judge" or self._watching
        return super()._choose(entities, np.zeros_like(blind) if judging else blind)

    @property
    def _policy_beta(self) -> float:
        return self.beta_ if self._phase in ("anneal", "settle") else math.inf

    def _costs_at(self, entities: IntArray, which: IntArray, layouts: FloatArray) -> FloatArray:
        if self.head_ == "costs":
            return self._network_costs_at(entities, which, layouts)
        return super()._costs_at(entities, which, layouts)

    def _network_costs_at(
        self, entities: IntArray, which: IntArray, layouts: FloatArray
    ) -> FloatArray:
        """Do the same for a network of costs, all layouts at once; ``which`` is in order."""
        assert self._trainer is not None
        counts = np.bincount(which, minlength=len(layouts))
        place = np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
        shape = (len(layouts), int(counts.max()))
        padded = np.zeros(shape, dtype=np.int64)
        padded[which, place] = entities
        none = np.zeros(shape)
        blank = np.zeros((*shape, self.n_clusters), dtype=bool)
        out = np.empty((len(entities), self.n_clusters))
        step = max(1, ROWS // shape[1])
        for lo in range(0, len(layouts), step):
            some = slice(lo, lo + step)
            batch = Batch(
                layouts[some],
                padded[some],
                padded[some] * 0,
                none[some],
                blank[some],
                blank[some, :, 0],
            )
            lesson = prepare(batch, self._X, self._cost, self._units, torch.float32, self._device)
            with torch.no_grad():
                E = self._trainer.network.costs(lesson.X, lesson.Y, lesson.D).cpu().numpy()
            mine = (which >= lo) & (which < lo + step)
            out[mine] = E[which[mine] - lo, place[mine]] * self._units.cost
        return out

    # -- learning ---------------------------------------------------------------------------------

    def tell(self, prescriptions: Any, response: Any) -> ADENClustering:
        """Learn from answers: from their costs, whatever else they reveal; see `Learner.tell`."""
        costs = Response(None, response.cost) if isinstance(response, Response) else response
        super().tell(prescriptions, costs)
        return self

    def _learn(
        self, asked: Asked, realized: IntArray | None, cost: FloatArray, centers: FloatArray
    ) -> None:
        m, recipe = len(cost), self._recipe
        Y = np.array(np.broadcast_to(centers, (m, *self.cluster_centers_.shape)))
        if self._phase == "judge":
            self._judge(asked, cost, Y)
        entities, prescribed = asked.entities, asked.prescribed
        if recipe.n_draws > 1 and self.head_ == "costs":
            entities, prescribed, cost, Y = averaged(entities, prescribed, cost, Y)
        matches = self._matches(entities, cost, Y)
        if recipe.ema > 0 and self.head_ == "costs":
            cells = entities * self.n_clusters + prescribed
            cost = blended(self._means.reshape(-1), cells, cost, recipe.ema)
        if self.head_ == "costs" and self._trainer is not None and cost.min() < 0:
            self._trainer.network.allow_negative()
        touched = self._replay.add(Y, entities, prescribed, cost, matches)
        self._told += m
        if self._phase in ("anneal", "settle"):
            usual = recipe.updates * m / recipe.n_questions
            most = recipe.epochs * recipe.updates
            planned = most * min(1.0, m / self._goal)
            self._train(touched, planned if self._phase == "anneal" else min(usual, most))
        while self._told >= self._goal:
            self._advance()
        if self._phase == "explore" and not self._watch_begun and self._until_watched <= 0:
            self._watched_from = self.n_interactions_
            if self._told:
                self._advance()

    def _matches(self, entities: IntArray, cost: FloatArray, Y: FloatArray) -> np.ndarray:
        """Return which centres cost as much, (m, K)."""
        with torch.no_grad():
            D = self._cost.each(torch.from_numpy(self._X[entities]), torch.from_numpy(Y)).numpy()
        near = EXACT * (self._cost_unit + np.abs(cost[:, None]))
        found: np.ndarray = np.abs(cost[:, None] - D) <= near
        return found

    def _train(self, touched: IntArray, steps: float) -> None:
        """Take steps on the newest answers, every other one on all that are remembered."""
        assert self._trainer is not None
        recipe, self._debt = self._recipe, self._debt + steps
        if self._debt >= 1 and self._trainer.n_steps == 0:
            self._begin_where_costs_are()
        while self._debt >= 1 and len(touched):
            self._debt -= 1
            n, pool = recipe.n_layouts, self._replay.n_groups
            newest = recipe.replay == 1 or self._trainer.n_steps % 2 == 0
            if recipe.replay == 1:
                groups = touched
            elif newest:
                groups = touched[self._rng.integers(0, len(touched), n)]
            else:
                groups = self._rng.integers(0, pool, n)
            lesson = self._lessons(groups)
            seed = int(self._rng.integers(2**31))
            self._loss = self._trainer.step(lesson, self._rate_factor(), seed)

    def _begin_where_costs_are(self) -> None:
        """Take out what all costs have in common; steps would have to go all the way there.

        Only if some are negative or it is much: else the published network begins as it should.
        """
        assert self._trainer is not None
        network, n_groups = self._trainer.network, self._replay.n_groups
        groups = np.unique(np.linspace(0, n_groups - 1, self._recipe.n_layouts).astype(int))
        lesson = self._lessons(groups)
        if _share_negative(self._replay.take(np.arange(n_groups))) > 0:
            network.allow_negative()
        with torch.no_grad():
            estimate = network.costs(lesson.X, lesson.Y, lesson.D)
        known = estimate.gather(2, lesson.prescribed[..., None])[..., 0]
        off = float((lesson.target - known)[lesson.valid].median())
        much = self._recipe.standardize and abs(off) > MUCH
        if network.floor < 0 or much:
            network.shift += off
            self._model_from_network()
            self._relabel()

    def _rate_factor(self) -> float:
        """Return the factor on the learning rate: warm-up, then a cosine over the annealing."""
        if not self._recipe.warm_up:
            return 1.0
        assert self._trainer is not None
        part = min(1.0, (self._stage + self._told / self._goal) / len(self._betas))
        cosine = 0.5 * (1 + math.cos(math.pi * part))
        return max(0.02, min(1.0, (self._trainer.n_steps + 1) / 100) * cosine)

    @property
    def _lessons(self) -> Lessons:
        return Lessons(self._replay, self._X, self._cost, self._units, self._device)

    def _advance(self) -> None:
        """End a stage: move the centres, and go on to the next one."""
        if self._phase == "probe":
            batch = self._replay.take(np.arange(self._replay.n_groups))
            unmatched = "served" if _share_negative(batch) <= 1 - MATCHED else "costs"
            self._decide("choices" if _share_matched(batch) >= MATCHED else unmatched)
        elif self._phase == "explore":
            if self._costs_explained():
                self._explore()
                self._stage += 1
                self._told = 0
        elif self._phase == "judge":
            self._choose_replica()
            self._settle("the centres with the least observed cost were chosen")
        else:
            self._descend()
            if self._phase == "anneal":
                self._next_beta()
            self._told = 0
        self._relabel()

    def _next_beta(self) -> None:
        self._stage += 1
        if self._stage < len(self._betas):
            self.beta_ = self._betas[self._stage]
            return
        assert self.model_ is not None
        assert self._trainer is not None
        common = float(self._trainer.network.shift) * self._units.cost
        self._replicas = distinct(self._problem(self.model_), self._replicas, common)
        if len(self._replicas) == 1:
            self._settle(f"beta_max={self._betas[-1]:g} reached")
            return
        self._phase, self._verdict = "judge", np.zeros((len(self._replicas), 3))

    def _settle(self, reason: str) -> None:
        """End the annealing; answers that come later refine the centres at the last beta."""
        self._finished, self._phase, self._told = reason, "settle", 0

    # -- choices: fit, then search ----------------------------------------------------------------

    def _decoded(self) -> tuple[Batch, Any]:
        """Return all answers, and where those are that tell which centre was used."""
        batch = self._replay.take(np.arange(self._replay.n_groups))
        return batch, np.nonzero(batch.valid & (batch.matches.sum(2) == 1))

    def _observed(self) -> Choices | None:
        if self.head_ != "choices":
            return None
        batch, rows = self._decoded()
        used = batch.matches[rows].argmax(1)
        return Choices(batch.entities[rows], batch.prescribed[rows], used, rows[0], batch.centers)

    def _lessons_without(self, kept: np.ndarray) -> Lessons:
        """Return what is to be learned if some decoded choices are left out."""
        batch, rows = self._decoded()
        told = batch.valid.copy()
        told[rows] = kept
        group, place = np.nonzero(told)
        replay = Replay(
            self.n_clusters, self._X.shape[1], self._recipe.n_samples, self._replay.capacity
        )
        at = (group, place)
        replay.add(
            batch.centers[group], batch.entities[at], batch.prescribed[at], batch.target[at],
            batch.matches[at],
        )  # fmt: skip
        return self._lessons._replace(replay=replay)

    def _fit_model(self, kept: np.ndarray | None = None) -> None:
        """Fit choices to all answers: linear logits, and the network if it explains more."""
        lessons = self._lessons if kept is None else self._lessons_without(kept)
        groups = np.arange(lessons.replay.n_groups)
        held = groups % HELD_OUT == HELD_OUT - 1
        if self.head_ == "served":
            self._fit_served(held)
            return
        start = None if self._logits is None else self._logits.linear
        if self._trained and start is None and self._trainer is not None:
            start = self._trainer.network.linear.detach().cpu().double().numpy()
        if self.n_clusters == 1:
            self._logits = LogitFit(np.zeros(4), 0.0)
        else:
            self._logits = fit_logits(lessons(groups[~held], torch.float64), start)
        accepted = self.n_clusters > 1 and held.sum() >= 4 and self._train_choices(lessons, held)
        if self.n_clusters > 1 and not accepted:
            self._logits = fit_logits(lessons(groups, torch.float64), self._logits.linear)
        assert self._trainer is not None
        self.model_ = self._logits.autonomy(self._units)
        network = self._trainer.network
        if accepted:
            self._model_from_network()
            self._loss = mean_loss(network, lessons, groups, self._recipe.n_layouts)
        else:
            self._loss = self._logits.loss
            with torch.no_grad():
                network.linear.copy_(torch.from_numpy(self._logits.linear))

    def _search(self) -> FloatArray:
        if self.head_ == "served":
            return self._search_warily()
        assert self._logits is not None
        found = self.model_
        # The portfolio is too much for a network: it runs on the linear part.
        self.model_ = self._with_loyalty(self._logits.autonomy(self._units))
        Y = super()._search()
        self.model_ = found
        return self._search_on_network(Y) if isinstance(self._unattached, NetworkAutonomy) else Y

    def _searched(self) -> Autonomy:
        return self._wary if self.head_ == "served" else super()._searched()

    def _move_to(self, Y: FloatArray) -> None:
        if self.head_ == "served":
            self._back_to_cheapest()
        super()._move_to(Y)
        if self._finished is not None and self.head_ == "served" and not self._confirmed():
            self._finished = None  # a search goes where a network is wrong: it is to be told more
        self._unseen = True
        self._replicas = self.cluster_centers_[None].copy()
        # Beta of the same meaning as in annealing: the policy is all but hard.
        self.beta_ = self._betas[-1]

    def _costs_explained(self, ending: bool = False) -> bool:
        """Whether costs are still what the network takes them for; if not, change that.

        Expected costs take so many answers that nothing is changed to them at the end.
        """
        batch = self._replay.take(np.arange(self._replay.n_groups))
        share, negative = _share_matched(batch), _share_negative(batch)
        insisted = self._wanted != "auto" or self._began_trained
        if self.head_ == "choices" and share >= MATCHED:
            return True
        if self.head_ == "choices" and insisted:
            raise ValueError(
                f"Of the costs told so far {100 * (1 - share):.1f} % are not those of any "
                "centre, so that they do not tell choices; use head='served', or give the "
                "metric in which costs are measured."
            )
        if negative <= 1 - MATCHED:
            if self.head_ == "choices":
                self._decide("served")
            return True
        if insisted:
            raise ValueError(
                f"Of the costs told so far {100 * negative:.1f} % are negative; head='costs' "
                "learns such costs."
            )
        if not ending:
            self._decide("costs")
        return False

    def _train_choices(self, lessons: Lessons, held: np.ndarray) -> bool:
        """Train what linear logits leave unexplained; say whether that helps with others."""
        assert self._trainer is not None
        assert self._logits is not None
        network = self._trainer.network
        judges, pool = lessons(np.flatnonzero(held)), np.flatnonzero(~held)
        told = judges.valid & judges.matches.any(2)
        blank = ADENetwork(network.n_features, network.size, "choices").to(self._device)
        for candidate in (blank, network) if not self._trained else (blank,):
            with torch.no_grad():
                candidate.linear.copy_(torch.from_numpy(self._logits.linear))
        plain = judged(blank, judges)[told]
        best = self._train_on(network, pool, judges, lessons=lessons)
        self._trained = helps = clearly_better(best, plain)
        if not helps:
            network.load_state_dict(blank.state_dict())
            self._transferred = False
        return helps

    def _train_on(
        self,
        network: ADENetwork,
        pool: IntArray,
        judges: Any,
        gently: float = 1.0,
        lessons: Lessons | None = None,
    ) -> torch.Tensor:
        """Train while it helps with the judges' answers; return what they cost then."""
        trainer, n_groups = self._new_trainer(network), self._recipe.n_layouts
        lessons = self._lessons if lessons is None else lessons
        return train_while_better(trainer, lessons, pool, judges, n_groups, self._rng, gently)

    # -- service: costs that only the population knows, and choices by them ----------------------

    def _fit_served(self, held: np.ndarray) -> None:
        """Fit all answers: first the few numbers, then the places, then attention if it helps."""
        assert self._trainer is not None
        service = ServiceFit(
            self._lessons,
            held,
            self._train_on,
            self._units.points(torch.from_numpy(self._X[self._weight > 0])),
            self.n_clusters,
            self._recipe.n_layouts,
            self._given_places if self._began_trained else None,
            self._rng,
        )
        network = service.fit(self._trainer.network)
        self._began_trained = self._transferred = service.given is not None
        self._trainer = self._new_trainer(network)
        self._model_from_network()
        groups = np.arange(len(held))
        self._loss = mean_loss(network, self._lessons, groups, self._recipe.n_layouts)

    # -- costs: descend, and in the end compare ---------------------------------------------------

    def _descend(self) -> None:
        """Move all replicas down the network's free energy at the present beta."""
        recipe = self._recipe
        self._model_from_network()
        assert self.model_ is not None
        whole = self._problem(self.model_)
        problem = thin(whole, canonical_order(whole), MOVED_BY)
        if recipe.center_rate is not None:
            problem = whole  # as published
        reach = 2 * self._spread()
        last = self._stage >= len(self._betas) - 1 or recipe.center_rate is not None
        here, room = self._X[self._weight > 0], BOX * self._range
        box = here.min(0) - room, here.max(0) + room
        for number, Y in enumerate(self._replicas):
            shake = 0.0 * Y if last else 1e-3 * self._scale * self._rng.standard_normal(Y.shape)
            self._replicas[number] = descended(recipe, problem, Y, self.beta_, reach, shake, box)
        self._place(min(self._replicas, key=problem.distortion))

    def _judge(self, asked: Asked, cost: FloatArray, Y: FloatArray) -> None:
        for number, replica in enumerate(self._replicas):
            seen = cost[(replica == Y).all((1, 2)) & (asked.greedy > 0)]
            self._verdict[number] += len(seen), seen.sum(), (seen**2).sum()

    def _choose_replica(self) -> None:
        """Take the replica that cost least, unless the one that should have is as good."""
        best = cheapest(self._verdict)
        self._monitor.forget_costs()  # of all replicas
        self._place(self._replicas[best])
        self._replicas = self.cluster_centers_[None].copy()

    # -- results ----------------------------------------------------------------------------------

    def _figures(self) -> dict[str, float]:
        return {**super()._figures(), "loss": self._loss, "stage": self._stage}

    def _conclude(self, thoroughly: bool) -> None:
        if self._told and self._finished is None and thoroughly:
            if self._phase == "probe":
                self._advance()
            if (
                self._phase == "explore"
                and self._watch_begun
                and self._told <= self._last_questions
            ):
                self._back_to_cheapest()
            elif self._phase == "explore":
                if self._costs_explained(ending=True):
                    self._explore()
            elif self._phase == "anneal":
                self._descend()
            elif self._phase == "judge":
                self._choose_replica()
        self._relabel()

    def _behaviour_changed(self, change: Change) -> None:
        """Costs alone do not show which clusters are realised: nothing is looked for."""

    def attention(self, X: Any = None) -> FloatArray:
        """Return how much entities attend to the centres in each block, shape (L, n, K)."""
        self._check_started()
        if self._trainer is None:
            raise ValueError("There is no network yet: it is made after the first answers.")
        if self.head_ == "served" and not self._trainer.network.attentive:
            raise ValueError(
                "This network (head='served') pays no attention: its choices follow what being "
                "served costs; draw `plot_costs` instead, or fit with head='costs'."
            )
        X = self._X if X is None else self._features(X)
        network, units = self._trainer.network, self._units
        x, y = (
            units.points(torch.from_numpy(z)).to(self._device, torch.float32)[None]
            for z in (X, self.cluster_centers_)
        )
        with torch.no_grad():
            parts = [network.attention(some, y)[:, 0].cpu() for some in torch.split(x, ROWS, dim=1)]
        return torch.cat(parts, dim=1).double().numpy()

    def save_network(self, path: Any) -> Any:
        """Write the network alone, to start other problems from (``network=``).

        Parameters
        ----------
        path : path

        Returns
        -------
        Path
        """
        self._check_started()
        if self._trainer is None:
            raise ValueError("There is no network yet: it is made after the first answers.")
        return save_network(self._trainer.network, path)

    # -- interruption -----------------------------------------------------------------------------

    def _accept(self, state: dict[str, Any]) -> None:
        # Whether steps are compiled is a matter of the machine.
        saved, own = state["recipe"], resolve_recipe(self.preset)
        if replace(saved, compile=False) != replace(own, compile=False):
            raise ValueError("The file was made with another preset or recipe.")
        if self.head in HEADS and state["head"] not in ("undecided", self.head):
            raise ValueError(f"The file holds head={state['head']!r}, not {self.head!r}.")

    def _state(self) -> dict[str, Any]:
        return state_of(self)

    def _restore(self, state: dict[str, Any]) -> None:
        restore(self, state)


def _share_matched(batch: Batch) -> float:
    """Return the share of answers whose cost is that of some centre."""
    found: Any = batch.matches.any(2)
    return float(found[batch.valid].mean())


def _share_negative(batch: Batch) -> float:
    """Return the share of answers whose cost is below nothing."""
    below: Any = batch.target < 0
    return float(below[batch.valid].mean())
