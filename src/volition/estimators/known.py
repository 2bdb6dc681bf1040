"""The scikit-learn estimator for known autonomy: validation, one call to a search, attributes."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from numbers import Real
from time import perf_counter
from typing import Any

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from volition.annealing.anneal import AnnealingResult, Record, anneal, describe
from volition.annealing.schedules import Explicit, Growing, Schedule, resolve_schedule
from volition.core.autonomy import Autonomy, Passive, RowAutonomy
from volition.core.costs import Cost, resolve_cost
from volition.core.deadline import Deadline, check_time_budget
from volition.core.kernels.blocks import threads_for
from volition.core.outliers import warn_of_outliers
from volition.core.problem import Problem
from volition.core.validation import (
    FloatArray,
    check_centers,
    check_finite,
    check_integer,
    check_kind,
)
from volition.estimators.display import Summary, SummaryMixin, cost_in_words, cost_unit, summarize
from volition.solvers import Armijo, FixedPoint, Gradient, Solution, Solver, Status
from volition.solvers.candidates import Candidate
from volition.solvers.descent import Descent
from volition.solvers.search import AGREEMENT, Search, SearchResult

log = logging.getLogger("volition")
#: entities on which the last passes are timed, and the multiple of that time that is kept free for
#: them: the centres are evaluated as well, and a pass that has begun is always finished
TIMED_ROWS, TIME_MARGIN = 8192, 2.0

SOLVERS: dict[str, Callable[[], Solver]] = {
    "fixed_point": FixedPoint,
    "armijo": Armijo,
    "gradient": Gradient,
}


class AutonomyAwareClustering(
    SummaryMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClusterMixin,
    CallbackSupportMixin,
    BaseEstimator,
):
    """Place centres and prescribe clusters when entities override prescriptions in a known way.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres K.
    autonomy : Autonomy, optional
        How entities override: `Passive`, `FixedAutonomy`, `DistanceAutonomy` or
        `CallableAutonomy`. By default they obey.
    metric : str, Cost or callable, default="sqeuclidean"
        What serving an entity from a centre costs: "sqeuclidean"; "haversine" (kilometres) or
        "sqhaversine" (kilometres squared) between (latitude, longitude) in degrees; or a torch
        function ``fn(X, Y) -> (n, K)``.
    init : "auto" or array of shape (K, d), default="auto"
        Centres to start from. With an array, only that start is used.
    n_init : "auto" or int, default="auto"
        Rounds of k-means starts of ``solver="auto"``; "auto" means 3, or fewer once four starts
        have led to the same best solution.
    solver : {"auto", "fixed_point", "armijo", "gradient"} or Solver, default="auto"
        "auto" combines many starts with exact-gradient polishing and keeps the best. The others
        anneal once: by Algorithm 1 and Algorithm 3 of the paper, or by the exact gradient.
    schedule : {"auto", "geometric", "critical"}, list of betas or Schedule, default="auto"
        The betas of annealing. By default they fit the data's scale and end when the policy is
        hard. With a list, ``solver="auto"`` minimises the free energy at its last beta.
    max_iter : int, default=300
        Largest number of iterations at one beta.
    tol : float, default=1e-6
        Iterations end when centres move by less than this share of the data's spread; those of the
        quasi-Newton solver when the free energy, in units of the data's, falls by less than tol².
    time_budget : float, optional
        Seconds that the whole fit may take; the best so far is then kept. Only reading the data
        once and prescribing once may exceed it. What is reached in time depends on the machine,
        whatever ``random_state``; numba's first compilation, some seconds, counts as well.
    chunk_size : int, optional
        Rows handled at a time. Changes memory, not results.
    device : str, default="auto"
        "auto" is CUDA where available, else the CPU.
    random_state : int, RandomState or None, default=None
        Seed of everything random.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (K, d)
        The centres.
    labels_ : ndarray of shape (n,)
        The best prescription for each entity.
    policy_ : ndarray of shape (n, K)
        The Gibbs policy pi(j | i) at ``beta_``.
    distortion_ : float
        Expected cost per entity when each is prescribed its label.
    free_energy_ : float
        At ``beta_``.
    beta_ : float
        The beta of the policy: the last one of annealing; with ``solver="auto"`` the last one of
        an explicit schedule, else one at which the policy is hard at these centres.
    betas_ : ndarray
        The betas of annealing.
    history_ : list of Record
        What annealing reached at each beta.
    transitions_ : list of PhaseTransition
        The betas at which the number of distinct centres changed.
    candidates_ : list of Candidate
        What was tried, and what each reached.
    winner_ : str
        The candidate that was kept.
    n_iter_ : int
        Iterations, all starts and betas together.
    converged_ : bool
        Whether the last iterations met ``tol`` or could not descend further.
    uses_autonomy_proba_ : bool
        Whether ``autonomy_proba`` was given, so that it is needed for prediction too.
    status_ : str
        How the fit ended, in words.

    Examples
    --------
    >>> from volition import AutonomyAwareClustering, DistanceAutonomy
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data
    >>> autonomy = DistanceAutonomy(kappa=0.3, temperature=0.01)
    >>> model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(X)
    >>> round(model.distortion_, 5)
    0.06965
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        autonomy: Autonomy | None = None,
        metric: Any = "sqeuclidean",
        init: Any = "auto",
        n_init: Any = "auto",
        solver: Any = "auto",
        schedule: Any = "auto",
        max_iter: int = 300,
        tol: float = 1e-6,
        time_budget: float | None = None,
        chunk_size: int | None = None,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.autonomy = autonomy
        self.metric = metric
        self.init = init
        self.n_init = n_init
        self.solver = solver
        self.schedule = schedule
        self.max_iter = max_iter
        self.tol = tol
        self.time_budget = time_budget
        self.chunk_size = chunk_size
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # -- fitting ----------------------------------------------------------------------------------

    @with_callbacks
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        autonomy_proba: Any = None,
    ) -> AutonomyAwareClustering:
        """Find centres and prescriptions.

        Parameters
        ----------
        X : array or frame of shape (n, d)
            Entities.
        y : ignored
            Present by convention.
        sample_weight : array of shape (n,), optional
            Relative weights. An integer weight is the same as that many rows.
        groups : array of shape (n,), optional
            Group of each entity, for a `FixedAutonomy` with one matrix per group.
        autonomy_proba : array of shape (n, K, K), optional
            p[i, j, k] for each entity, instead of an autonomy model.

        Returns
        -------
        self
        """
        self._check_params()
        deadline = Deadline.after(self.time_budget)
        X = self._check_X(X, reset=True)
        schedule = resolve_schedule(self.schedule)
        if isinstance(schedule, Growing):
            raise ValueError(
                "schedule Growing chooses the number of centres; see suggest_n_clusters."
            )
        problem = self._problem(X, groups, autonomy_proba, sample_weight)
        problem.check_spread()
        names = getattr(self, "feature_names_in_", None)
        warn_of_outliers(X, problem.weight, names)
        init = self._check_init(problem)
        rng = check_random_state(self.random_state)
        deadline = deadline.sooner(self._time_to_finish(problem, deadline))
        tasks = _Tasks(self, X)
        self.uses_autonomy_proba_ = autonomy_proba is not None
        if self._solves_once:
            result = self._anneal(problem, schedule, init, rng, deadline, tasks)
        elif init is None:
            result = self._search(problem, schedule, rng, deadline, tasks)
        else:
            result = self._polish(problem, schedule, init, deadline, tasks)
        self._keep(result)
        with threads_for(problem.n_blocks):
            self._finish(problem, result.centers, reorder=init is None)
        tasks.close()
        log.info(
            "Cost %.6g by %s of %d tried", self.distortion_, self.winner_, len(self.candidates_)
        )
        if result.status is Status.OUT_OF_ITERATIONS and self.tol > 0:
            warnings.warn(
                f"The last iterations {self.status_} (max_iter={self.max_iter}, tol={self.tol:g}); "
                "raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    @property
    def _solves_once(self) -> bool:
        """Whether a solver was chosen, which then anneals once."""
        return not (isinstance(self.solver, str) and self.solver == "auto")

    def _anneal(
        self,
        problem: Problem,
        schedule: Schedule,
        init: FloatArray | None,
        rng: np.random.RandomState,
        deadline: Deadline,
        tasks: _Tasks,
    ) -> SearchResult:
        """Anneal once with the solver that was chosen."""
        began = perf_counter()
        tasks.open(len(schedule.betas) if isinstance(schedule, Explicit) else None)
        result = anneal(
            problem,
            self.n_clusters if init is None else init,
            solver=SOLVERS[self.solver]() if isinstance(self.solver, str) else self.solver,
            schedule=schedule,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=rng,
            on_beta=tasks.beta,
            deadline=deadline,
            predict=problem.collapses,  # elsewhere it would take longer than the annealing
        )
        cost, n_iter = result.history[-1].hard_distortion, max(1, result.n_iter)
        tried = Candidate("annealed", cost, n_iter, perf_counter() - began)
        return SearchResult(
            result.centers, result.beta, [tried], tried.name, result, n_iter, result.status
        )

    def _search(
        self,
        problem: Problem,
        schedule: Schedule,
        rng: np.random.RandomState,
        deadline: Deadline,
        tasks: _Tasks,
    ) -> SearchResult:
        """Try many starts; keep the best."""
        chosen = isinstance(self.n_init, str)
        search = Search(
            problem,
            self.n_clusters,
            random_state=rng,
            beta=_last_beta(schedule),
            n_init=3 if chosen else self.n_init,
            agreement=AGREEMENT if chosen else None,
            max_iter=self.max_iter,
            tol=self.tol,
            schedule=None if _is_default(self.schedule) else schedule,
            deadline=deadline,
            on_begin=tasks.begin,
            on_end=tasks.end,
            on_beta=tasks.beta,
        )
        tasks.open(search.most_tasks)
        return search.run()

    def _polish(
        self,
        problem: Problem,
        schedule: Schedule,
        init: FloatArray,
        deadline: Deadline,
        tasks: _Tasks,
    ) -> SearchResult:
        """Start from the user's centres only: no other start, no moved centres."""
        began = perf_counter()
        descent = Descent(_last_beta(schedule), self.max_iter, self.tol, deadline)
        tasks.open(1)
        tasks.begin("init", False)
        with threads_for(problem.n_blocks):
            Y, status = descent.finish(problem, descent.polish(problem, init))
            beta = descent.hard_beta(problem, Y)
            summary = problem.summary(Y, beta)
        found = Solution(problem.centers(Y), summary.free_energy, descent.n_iter, status)
        record = describe(problem, found, beta, summary)
        seconds = perf_counter() - began
        tried = Candidate("init", summary.hard_distortion, descent.n_iter, seconds)
        tasks.end(tried, Y, beta)
        path = AnnealingResult(Y, beta, [record], [Y], [], status)
        return SearchResult(Y, beta, [tried], tried.name, path, descent.n_iter, status)

    def _time_to_finish(self, problem: Problem, deadline: Deadline) -> float:
        """Estimate the seconds that judging and prescribing takes once the search has ended."""
        if not deadline.finite:
            return 0.0
        rows = np.linspace(0, problem.n - 1, min(problem.n, TIMED_ROWS)).astype(int)
        probe = problem.subset(rows, np.ones(len(rows)))
        Y = probe.X[np.arange(self.n_clusters) % len(rows)].astype(np.float64)
        with threads_for(probe.n_blocks):
            probe.summary(Y, math.inf)  # compiles, where that has not been done
            began = perf_counter()
            probe.labels(Y)
            probe.prescribe(Y, math.inf)
            seconds = perf_counter() - began
        return TIME_MARGIN * seconds * problem.n / len(rows)

    def _keep(self, result: SearchResult) -> None:
        history = result.annealing.history
        self.beta_ = result.beta
        self.betas_ = np.array([record.beta for record in history])
        self.history_ = history
        self.transitions_ = result.annealing.transitions
        self.candidates_, self.winner_ = result.candidates, result.winner
        self.n_iter_: int = max(1, result.n_iter)
        self.status_: str = result.status.value
        self.converged_ = result.status in (Status.CONVERGED, Status.STALLED)

    def _finish(self, problem: Problem, Y: FloatArray, reorder: bool) -> None:
        Y = problem.cost.canonical(Y)
        if reorder and problem.autonomy.interchangeable:
            # Cluster numbers have no meaning here: order them by position, unused ones last.
            used = np.isin(np.arange(len(Y)), problem.labels(Y))
            Y = Y[np.lexsort((*Y.T[::-1], ~used))]
        float32 = problem.dtype == torch.float32
        self.cluster_centers_ = Y.astype(np.float32 if float32 else np.float64, copy=False)
        labels, self.policy_, summary = problem.prescribe(self.cluster_centers_, self.beta_)
        if problem.loses_digits(summary.hard_distortion):
            exact = problem.by_differences()
            labels, self.policy_, summary = exact.prescribe(self.cluster_centers_, self.beta_)
        self.labels_ = labels
        self.distortion_, self.free_energy_ = summary.hard_distortion, summary.free_energy
        self._n_features_out = len(Y)

    def fit_transform(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        autonomy_proba: Any = None,
    ) -> FloatArray:
        """Fit, then return the expected cost of each prescription, shape (n, K)."""
        self.fit(X, y, sample_weight, groups, autonomy_proba)
        return self.transform(X, groups=groups, autonomy_proba=autonomy_proba)

    # -- using ------------------------------------------------------------------------------------

    def predict(self, X: Any, groups: Any = None, autonomy_proba: Any = None) -> np.ndarray:
        """Return the best prescription for each entity.

        Parameters
        ----------
        X : array or frame of shape (n, d)
            Entities, new or old.
        groups, autonomy_proba : optional
            As in :meth:`fit`, for these entities.

        Returns
        -------
        ndarray of shape (n,)
        """
        problem = self._fitted_problem(X, groups, autonomy_proba)
        return problem.labels(self.cluster_centers_)

    def predict_proba(self, X: Any, groups: Any = None, autonomy_proba: Any = None) -> FloatArray:
        """Return the Gibbs policy pi(j | i) at ``beta_``, shape (n, K)."""
        problem = self._fitted_problem(X, groups, autonomy_proba)
        return problem.policy(self.cluster_centers_, self.beta_)

    def predict_realized(
        self, X: Any, groups: Any = None, autonomy_proba: Any = None, *, soft: bool = False
    ) -> FloatArray:
        """Return the distribution of the cluster that each entity will really use, shape (n, K).

        Parameters
        ----------
        X : array or frame of shape (n, d)
            Entities.
        groups, autonomy_proba : optional
            As in :meth:`fit`, for these entities.
        soft : bool, default=False
            Prescribe by the Gibbs policy instead of the best prescription.

        Returns
        -------
        ndarray of shape (n, K)
        """
        problem = self._fitted_problem(X, groups, autonomy_proba)
        Y = self.cluster_centers_
        if not soft:
            return problem.conditional(Y, problem.labels(Y))
        return problem.realized(Y, problem.policy(Y, self.beta_))

    def transform(self, X: Any, groups: Any = None, autonomy_proba: Any = None) -> FloatArray:
        """Return the expected cost of each prescription, shape (n, K)."""
        problem = self._fitted_problem(X, groups, autonomy_proba)
        return problem.expected_costs(self.cluster_centers_)

    def score(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        autonomy_proba: Any = None,
    ) -> float:
        """Return minus the distortion of these entities: higher is better."""
        problem = self._fitted_problem(X, groups, autonomy_proba, sample_weight)
        return -problem.distortion(self.cluster_centers_)

    def _summary(self) -> Summary | None:
        if not hasattr(self, "labels_"):
            return None
        facts = [
            ("cost per entity", cost_in_words(self.distortion_, cost_unit(self))),
            ("kept", f"{self.winner_}, of {len(self.candidates_)} tried"),
            ("ended", self.status_),
        ]
        doubts = [] if self.converged_ else [f"The last iterations {self.status_}."]
        return summarize(self, self.cluster_centers_, self.labels_, facts, doubts)

    # -- checks -----------------------------------------------------------------------------------

    def _check_params(self) -> None:
        check_integer(self.n_clusters, "n_clusters", 1)
        check_integer(self.max_iter, "max_iter", 1)
        if not (isinstance(self.n_init, str) and self.n_init == "auto"):
            check_integer(self.n_init, "n_init", 1, " or 'auto'")
        if self.chunk_size is not None:
            check_integer(self.chunk_size, "chunk_size", 1, " or None")
        if not isinstance(self.tol, Real) or not 0 <= self.tol < math.inf:
            raise ValueError(f"tol must be a finite number >= 0, got {self.tol!r}.")
        check_time_budget(self.time_budget)
        if self.autonomy is not None and not isinstance(self.autonomy, Autonomy):
            raise ValueError(
                "autonomy must be an autonomy model such as DistanceAutonomy(0.2) or "
                f"FixedAutonomy(matrix), got {self.autonomy!r}."
            )
        known = isinstance(self.solver, str) and self.solver in ("auto", *SOLVERS)
        if not known and (isinstance(self.solver, type) or not hasattr(self.solver, "solve")):
            raise ValueError(
                f"solver must be one of {['auto', *SOLVERS]} or a Solver, got {self.solver!r}."
            )

    def _check_X(self, X: Any, *, reset: bool) -> FloatArray:
        check_kind(X)
        X = validate_data(
            self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False
        )
        check_finite(X, "X", getattr(self, "feature_names_in_", None))
        return X

    def _check_init(self, problem: Problem) -> FloatArray | None:
        if self.n_clusters > problem.n:
            raise ValueError(
                f"n_clusters={self.n_clusters} must not exceed the number of entities, "
                f"n_samples={problem.n}."
            )
        problem.autonomy.check(self.n_clusters, problem.n)
        if isinstance(self.init, str):
            if self.init == "auto":
                return None
            raise ValueError(f"init must be 'auto' or an array of centres, got {self.init!r}.")
        init = check_centers(self.init, problem.d, "init")
        if len(init) != self.n_clusters:
            raise ValueError(
                f"init has {len(init)} centres, but n_clusters={self.n_clusters}; "
                "the two must agree."
            )
        problem.cost.check(init, "init")
        return init

    def _problem(
        self, X: FloatArray, groups: Any, autonomy_proba: Any, sample_weight: Any = None
    ) -> Problem:
        autonomy = Passive() if self.autonomy is None else self.autonomy
        if autonomy_proba is not None:
            if self.autonomy is not None:
                raise ValueError("Give autonomy or autonomy_proba, not both.")
            autonomy = RowAutonomy(autonomy_proba)
            autonomy.check(autonomy.p.shape[1], len(X))
        return Problem(
            X,
            sample_weight=sample_weight,
            cost=self._cost(),
            autonomy=autonomy,
            groups=groups,
            chunk_size=self.chunk_size,
            device=_device(self.device),
        )

    def _cost(self) -> Cost:
        return resolve_cost(self.metric)

    def _fitted_problem(
        self, X: Any, groups: Any, autonomy_proba: Any, sample_weight: Any = None
    ) -> Problem:
        check_is_fitted(self)
        X = self._check_X(X, reset=False)
        if autonomy_proba is None and getattr(self, "uses_autonomy_proba_", False):
            raise ValueError(
                "This model was fitted with autonomy_proba; give autonomy_proba for these "
                f"{len(X)} entities too."
            )
        problem = self._problem(X, groups, autonomy_proba, sample_weight)
        problem.autonomy.check(len(self.cluster_centers_), len(X))
        return problem


class _Tasks:
    """Tells scikit-learn's callbacks about starts and betas: fit -> start -> beta."""

    def __init__(self, estimator: AutonomyAwareClustering, X: FloatArray) -> None:
        self.estimator, self.X = estimator, X
        self.root: Any = None
        self.start: Any = None

    def open(self, max_subtasks: int | None) -> None:
        self.root = self.estimator._init_callback_context(max_subtasks=max_subtasks)
        self.root.call_on_fit_task_begin(estimator=self.estimator, X=self.X)

    def begin(self, name: str, has_betas: bool) -> None:
        subtasks = None if has_betas else 0
        self.start = self.root.subcontext(task_name=name, max_subtasks=subtasks)
        self.start.call_on_fit_task_begin(estimator=self.estimator, X=self.X)

    def end(self, candidate: Candidate, centers: FloatArray, beta: float) -> bool:
        stop = self._end(self.start, centers, beta)
        self.start = None
        return stop

    def beta(self, record: Record, centers: FloatArray) -> bool:
        parent = self.root if self.start is None else self.start
        context = parent.subcontext(task_name=f"beta={record.beta:.4g}")
        context.call_on_fit_task_begin(estimator=self.estimator, X=self.X)
        return self._end(context, centers, record.beta)

    def close(self) -> None:
        self.root.call_on_fit_task_end(estimator=self.estimator, X=self.X)

    def _end(self, context: Any, centers: FloatArray, beta: float) -> bool:
        def state() -> dict[str, Any]:
            return {"cluster_centers_": centers.astype(self.X.dtype), "beta_": beta}

        return bool(
            context.call_on_fit_task_end(
                estimator=self.estimator, X=self.X, reconstruction_attributes=state
            )
        )


def _device(device: Any) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be 'auto' or a torch device that is available here, got {device!r}: "
            f"{reason}"
        ) from None
    return str(device)


def _is_default(schedule: Any) -> bool:
    return isinstance(schedule, str) and schedule != "critical"


def _last_beta(schedule: Schedule) -> float:
    """Return the beta that the user asked for, or infinity when the data may choose."""
    beta: float | None = getattr(schedule, "beta_max", None)
    return math.inf if beta is None else beta
