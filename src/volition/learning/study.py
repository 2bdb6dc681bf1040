"""A study: entities, questions, answers, and a strategy that learns from them.

`ask` hands out questions, `tell` writes answers down, `learn` makes something of them, and `fit` is
a loop of these. `tell` and `learn` either do all of their work or nothing: answers wait in an inbox
until a copy of the strategy has learned from them, and then the copy takes the strategy's place.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volition.core.validation import FloatArray, check_integer
from volition.io.serialization import registered
from volition.learning.drift.detector import Change
from volition.learning.entities import Entities
from volition.learning.ledger import Asked, Ledger
from volition.learning.monitor import Estimate
from volition.learning.strategy import Answers, Strategy, Tally
from volition.learning.trial import Plan, TrialResult, contradicts
from volition.populations.answers import IntArray, Prescriptions, Response, check_range

log = logging.getLogger("volition")
#: lines of history beyond which every other one is dropped
LONGEST_HISTORY = 20_000
#: attributes of a study that a file keeps
SAVED = (
    "inbox", "strangers", "version", "shown", "tally", "history", "changes", "trial", "finalized",
    "assumption",
)  # fmt: skip
#: share of entities that come or go at once, beyond which what they do is no longer comparable
MANY = 0.1


@registered
class Progress(NamedTuple):
    """How far a learner was after a batch: a line of its history."""

    interactions: int
    answers: int
    beta: float
    #: cost of the plan as the model sees it; NaN as long as there is no model
    distortion: float
    #: cost of the plan by answers alone, and its 95 % interval
    observed: float
    low: float
    high: float
    #: mean loss of the answers, where a network or terms are fitted
    loss: float = math.nan
    #: how often a model was fitted and centres were searched for
    stage: int = 0


@registered
class Letter(NamedTuple):
    """Answers that were told and not yet learned from."""

    ids: IntArray  # -1 for prescriptions that this learner has not made
    answers: Answers


class Study:
    """Entities and a strategy, with the questions and answers between them.

    Parameters
    ----------
    strategy : Strategy
        What to ask and what to make of answers; it has the entities.
    name : str
        Who speaks in error messages.
    """

    def __init__(self, strategy: Strategy, name: str = "The learner") -> None:
        self.strategy, self.name = strategy, name
        self.ledger = Ledger()
        self.inbox: tuple[Letter, ...] = ()
        #: numbers of questions that were asked by an earlier run, after its last checkpoint
        self.strangers = np.zeros(0, dtype=np.int64)
        #: the centres that were shown last, and their number
        self.shown: FloatArray | None = None
        self.version = 0
        self.tally = Tally()
        self.history: list[Progress] = []
        self.changes: list[Change] = []
        self.trial = TrialResult()
        #: whether the plan is what a fit makes of all answers at its end
        self.finalized = False
        #: what a strategy that has handed over had found out about its own assumption
        self.assumption: Any = None
        self._lock = threading.RLock()
        self._learning = threading.Lock()

    # -- asking -----------------------------------------------------------------------------------

    @property
    def entities(self) -> Entities:
        """The entities, those that have left included."""
        return self.strategy.entities

    def ask(self, n: int | None = None, entities: Any = None) -> Prescriptions:
        """Return questions: about n entities that are drawn, or about these."""
        with self._lock:
            strategy, who = self.strategy, self._whom(n, entities)
            blind = strategy.rng.random(len(who)) < strategy.exploration
            with strategy.few_threads():
                asked = strategy.choose(who, blind)
            version = self._versions(asked.centers, len(who))
            chance = np.broadcast_to(np.asarray(asked.propensity, dtype=np.float64), (len(who),))
            ids = self.ledger.issue(who, asked.prescribed, chance, asked.greedy, blind, version)
            self._count(asked=len(who))
            return Prescriptions(who, asked.prescribed, asked.centers, ids, chance.copy(), version)

    def _whom(self, n: int | None, entities: Any) -> IntArray:
        """Return whom to ask, or raise one sentence."""
        strategy = self.strategy
        if entities is None:
            if n is None:
                left = strategy.limit - self.tally.asked
                n = min(strategy.batch_size, left) if left > 0 else strategy.batch_size
            check_integer(n, "n", 1)
            return strategy.draw_entities(n)
        if n is not None:
            raise ValueError("ask takes n or entities, not both.")
        who = self.entities.check_numbers(entities)
        gone = np.flatnonzero(self.entities.weight[who] <= 0)
        if len(gone):
            raise ValueError(f"Entity {who[gone[0]]} has left; it cannot be asked.")
        if len(who) == 0:
            raise ValueError("entities must name at least one entity.")
        return who

    def _versions(self, centers: FloatArray, m: int) -> IntArray:
        """Number sets of centres in the order in which they are shown; a set keeps its number."""
        sets = centers[None] if centers.ndim == 2 else centers
        before = sets[:1] if self.shown is None else self.shown[None]
        new = (sets != np.concatenate([before, sets[:-1]])).any((1, 2))
        new[0] |= self.shown is None
        numbers = self.version + np.cumsum(new)
        self.version, self.shown = int(numbers[-1]), sets[-1].copy()
        return np.broadcast_to(numbers, (m,)).astype(np.int64)

    def _count(self, asked: int = 0, answered: int = 0, repeated: int = 0) -> None:
        more = (asked, answered, repeated)
        self.tally = Tally(*(a + b for a, b in zip(self.tally, more, strict=True)))
        self.strategy.tally = self.tally

    # -- telling ----------------------------------------------------------------------------------

    def tell(self, prescriptions: Prescriptions, response: Response) -> int:
        """Write answers down; return how many are new. Nothing is learned before `learn`."""
        with self._lock:
            rows = self._checked(prescriptions, response)
            ids, asked = self._asked(prescriptions, rows)
            new = self._new(ids)
            rows, repeated = rows[new], int((~new).sum())
            realized, shown = response.realized, prescriptions.centers
            answers = Answers(
                asked.take(new),
                np.full(len(rows), -1) if realized is None else realized[rows],
                response.cost[rows],
                shown.copy() if shown.ndim == 2 else shown[rows],
            )
            inbox = (*self.inbox, Letter(ids[new], answers)) if len(rows) else self.inbox
            tally = self.tally._replace(repeated=self.tally.repeated + repeated)
            # One step: whatever fails, an answer is written down and counted, or neither.
            vars(self).update(inbox=inbox, tally=tally)
            return len(rows)

    def _checked(self, prescriptions: Any, response: Any) -> IntArray:
        """Return the rows that hold an answer; raise one sentence if anything is odd."""
        if not isinstance(prescriptions, Prescriptions) or not isinstance(response, Response):
            raise ValueError(
                "tell needs Prescriptions, as ask returns them, and a Response; got "
                f"{type(prescriptions).__name__} and {type(response).__name__}."
            )
        cost, realized = response.cost, response.realized
        if cost.shape != (len(prescriptions),) or (
            realized is not None and realized.shape != cost.shape
        ):
            raise ValueError(
                f"{len(prescriptions)} prescriptions, but {len(response)} answers; there must be "
                "one row for each (cost NaN where no answer came)."
            )
        strategy = self.strategy
        if prescriptions.centers.shape[-2:] != strategy.centers.shape:
            raise ValueError(
                f"The prescriptions' centres have shape {prescriptions.centers.shape}, but "
                f"{strategy.centers.shape} is expected."
            )
        rows = np.flatnonzero(response.answered)
        if strategy.needs_realized and len(rows):
            if realized is None:
                raise ValueError(
                    f"{self.name} needs the realised clusters, not only costs: the population "
                    "must reveal them."
                )
            rows = rows[realized[rows] >= 0]
        if realized is not None:
            bad = rows[realized[rows] >= strategy.n_clusters]
            if len(bad):
                raise ValueError(
                    f"Answer {bad[0]} names cluster {realized[bad[0]]}; clusters are numbered 0 to "
                    f"{strategy.n_clusters - 1}."
                )
        check_range(prescriptions.entities, "entity", len(self.entities))
        check_range(prescriptions.prescribed, "cluster", strategy.n_clusters)
        return rows

    def _asked(self, prescriptions: Prescriptions, rows: IntArray) -> tuple[IntArray, Asked]:
        """Return numbers of questions, and what is known of how they came about."""
        m = len(rows)
        entities, prescribed = prescriptions.entities[rows], prescriptions.prescribed[rows]
        none = np.zeros(m, dtype=np.int8)
        minus = np.full(m, -1, dtype=np.int64)
        chance = prescriptions.propensity
        chance = np.full(m, math.nan) if chance is None else chance[rows]
        # How these were chosen is not known: they say nothing of our own cost.
        asked = Asked(minus, entities, prescribed, chance, none, none, minus)
        if prescriptions.ids is None:
            return minus, asked
        ids = prescriptions.ids[rows]
        slots = self.ledger.slots(ids)
        known = np.flatnonzero(slots >= 0)
        mine = self.ledger.asked(slots[known])
        other = (mine.entities != entities[known]) | (mine.prescribed != prescribed[known])
        unknown = np.flatnonzero(slots < 0)
        strange = rows[known[other]]
        if len(unknown) and prescriptions.propensity is None:
            strange = np.concatenate([strange, rows[unknown]])
        if len(strange):
            row = int(strange.min())
            raise ValueError(
                f"Question {prescriptions.ids[row]} (row {row}) was never asked like this by this "
                f"learner, or more than {self.ledger.patience} questions ago; nothing was learned "
                "from the batch."
            )
        columns = [column.copy() for column in asked]
        for column, values in zip(columns, mine, strict=True):
            column[known] = values
        return ids, Asked(*columns)

    def _new(self, ids: IntArray) -> np.ndarray:
        """Return which answers were never told before."""
        slots = self.ledger.slots(ids)
        told = np.concatenate([self.strangers, *(letter.ids for letter in self.inbox)])
        again = ((slots >= 0) & self.ledger.answered[slots]) | np.isin(ids, told)
        first = np.zeros(len(ids), dtype=bool)
        first[np.unique(ids, return_index=True)[1]] = True
        return (ids < 0) | (first & ~again)

    # -- learning ---------------------------------------------------------------------------------

    def learn(self) -> bool:
        """Learn from all answers that were told; return whether there were any.

        It may run in a thread of its own: questions can be asked and answers told meanwhile.
        """
        with self._learning:
            letters = self.inbox
            if letters:
                self._attempt(lambda strategy: self._read(strategy, letters), letters)
            return bool(letters)

    def finalize(self, thoroughly: bool = True) -> None:
        """Learn, and make of all answers what a fit makes of them at its end; all or nothing."""
        self.learn()
        with self._learning:
            self._attempt(lambda strategy: self._finalized(strategy, thoroughly))

    def _attempt(
        self, work: Callable[[Strategy], dict[str, Any]], letters: tuple[Letter, ...] = ()
    ) -> None:
        """Let a copy of the strategy work, and put what comes of it in place: all or nothing."""
        with self._lock:
            before, strategy = self.strategy, self.strategy.copied()
            strategy.tally, seed = self.tally, before.rng.bit_generator.state
        try:
            found = work(strategy)
            with self._lock:
                found |= self._ticked(letters)
                # Questions may have been asked meanwhile.
                tally = self.tally._replace(answered=found["strategy"].tally.answered)
                found["strategy"].tally = tally
                vars(self).update(found, tally=tally)
            log.debug("%s has learned from %d answers", self.name, tally.answered)
        except BaseException:
            if self.strategy is before:
                strategy.undo()
                before.rng.bit_generator.state = seed
            raise

    def _read(self, strategy: Strategy, letters: tuple[Letter, ...]) -> dict[str, Any]:
        """Let a copy of the strategy learn from letters."""
        history, changes, trial = list(self.history), list(self.changes), self.trial
        for letter in letters:
            trial = self._learned(strategy, letter.answers, history, changes, trial)
        found = {"history": history, "changes": changes, "trial": trial, "finalized": False}
        heir = strategy.successor()
        if heir is None:
            return found | {"strategy": strategy}
        log.info("%s goes on with %s", self.name, type(heir).__name__)
        heir.tally, heir.begun_at = strategy.tally, strategy.tally.asked
        assumption = getattr(strategy, "assumption", None)
        return found | {"strategy": heir, "assumption": assumption}

    def _learned(
        self, strategy: Strategy, answers: Answers, history: list[Any], changes: list[Change],
        trial: TrialResult,
    ) -> TrialResult:  # fmt: skip
        """Let a copy of the strategy learn from one batch."""
        # Those who left since they were asked are of no concern any more.
        here = np.flatnonzero(strategy.entities.weight[answers.asked.entities] > 0)
        if len(here) < len(answers):
            answers = answers.take(here)
        if len(answers) == 0:
            return trial
        tally = strategy.tally
        strategy.tally = tally._replace(answered=tally.answered + len(answers))
        plan = strategy.centers, strategy.labels
        asked, monitor = answers.asked, strategy.monitor
        good = (asked.greedy > 0) & strategy.as_now(answers.centers) & np.isfinite(answers.cost)
        seen = answers.realized[good] if (answers.realized >= 0).all() else None
        monitor.add_costs(
            answers.cost[good], 1 / asked.propensity[good], asked.entities[good], seen
        )
        strategy.take(answers)
        change = strategy.noticed(answers)
        if change is not None:
            log.info("Behaviour has changed: %s", change.what)
            changes.append(change)
            monitor.forget_costs()
            trial = TrialResult()
            strategy.changed(change)
        with strategy.few_threads():
            strategy.learn(answers)
        later = monitor.distortion(strategy.recost, since_mark=True)
        if _moved(plan, strategy):
            trial = TrialResult()
        elif trial.estimate is not None and contradicts(later, trial.estimate):
            trial = TrialResult()
            monitor.forget_before_mark()
        _note(strategy, history, trial)
        return trial

    def _finalized(self, strategy: Strategy, thoroughly: bool) -> dict[str, Any]:
        """Let a copy of the strategy set its plan from all that is known."""
        history, plan = list(self.history), (strategy.centers, strategy.labels)
        with strategy.few_threads():
            strategy.finalize(thoroughly)
        if history and history[-1].interactions == self.tally.asked:
            del history[-1]  # it is of before
        trial = TrialResult() if _moved(plan, strategy) else self.trial
        if self.tally.answered:
            _note(strategy, history, trial)
        return {"strategy": strategy, "history": history, "trial": trial}

    def _ticked(self, letters: tuple[Letter, ...]) -> dict[str, Any]:
        """Return the books after letters were learned from."""
        if not letters:
            return {}
        ids = np.concatenate([letter.ids for letter in letters])
        slots = self.ledger.slots(ids)
        answered = self.ledger.answered.copy()
        answered[slots[slots >= 0]] = True
        return {
            "ledger": self.ledger.with_answered(answered),
            "strangers": np.concatenate([self.strangers, ids[(slots < 0) & (ids >= 0)]]),
            "inbox": self.inbox[len(letters) :],
        }

    def take_over(self, strategy: Strategy, n_answers: int) -> None:
        """Go on with a strategy that has learned all there is in a log of so many answers."""
        with self._lock:
            strategy.tally = Tally(n_answers, n_answers)
            strategy.begun_at = self.tally.asked
            vars(self).update(strategy=strategy, tally=strategy.tally, finalized=True)
            self.note()

    def count_foreign(self, asked: int, answered: int = 0) -> None:
        """Count questions that `ask` has not made: of a log, or of a trial."""
        with self._lock:
            self._count(asked, answered)

    def note(self) -> None:
        """Add a line to the history."""
        _note(self.strategy, self.history, self.trial)

    # -- results ----------------------------------------------------------------------------------

    def distortion_estimate(self) -> Estimate:
        """Return what the plan costs by answers alone, with a 95 % interval."""
        return _seen(self.strategy, self.trial)

    # -- who comes and goes -----------------------------------------------------------------------

    def add_entities(self, X: Any, sample_weight: Any = None, covariates: Any = None) -> IntArray:
        """Take in new entities; return their numbers."""
        with self._learning, self._lock:
            first = len(self.entities)
            more = self.entities.added(X, sample_weight, covariates)
            strategy = self.strategy.copied()
            strategy.admit(more, first)
            self._go_on_with(strategy, len(more) - first)
            return np.arange(first, len(more))

    def remove_entities(self, entities: Any) -> None:
        """Let entities go: they are not asked again and no longer count."""
        with self._learning, self._lock:
            strategy = self.strategy.copied()
            fewer = self.entities.without(entities)
            strategy.dismiss(fewer)
            self._go_on_with(strategy, len(self.entities.here) - len(fewer.here))

    def _go_on_with(self, strategy: Strategy, n: int) -> None:
        """Go on with n other entities; if they are many, nothing is compared with what was."""
        if n > MANY * len(strategy.entities.here):
            strategy.watch.forget()
        vars(self).update(strategy=strategy, trial=TrialResult())

    def hold(self, centers: FloatArray) -> None:
        """Let the centres stand here from now on."""
        with self._learning, self._lock:
            strategy = self.strategy.copied()
            strategy.hold(centers)
            vars(self).update(strategy=strategy, trial=TrialResult(), finalized=False)

    def adopt_plan(self, plan: Plan, distortion: float, trial: TrialResult) -> None:
        """Put another plan in place of the learned one."""
        strategy = self.strategy.copied()
        strategy.centers, strategy.distortion = plan.centers, distortion
        strategy.labels = np.where(self.entities.weight > 0, plan.labels, -1)
        vars(self).update(strategy=strategy, trial=trial)

    # -- files ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_lock", "_learning")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock(), _learning=threading.Lock())

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on from here: plain values and arrays, nested.

        It waits for a `learn` in another thread: half of what that does is no state.
        """
        with self._learning, self._lock:
            return {name: getattr(self, name) for name in SAVED} | {
                "entities": self.entities.state(),
                "strategy": self.strategy.state(),
                "ledger": self.ledger.state(),
                "rng": self.strategy.rng.bit_generator.state,
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved `state`; the strategy is a new one for the same entities."""
        self.strategy.restore(state["strategy"])
        # Parts that were made again may have drawn some numbers.
        self.strategy.rng.bit_generator.state = state["rng"]
        vars(self).update({name: state[name] for name in SAVED})
        self.ledger = Ledger.from_state(state["ledger"])
        self.strategy.tally = self.tally


def _moved(plan: tuple[FloatArray, IntArray], strategy: Strategy) -> bool:
    """Whether a strategy's plan is another one than before."""
    now = strategy.centers, strategy.labels
    return not all(np.array_equal(a, b) for a, b in zip(plan, now, strict=True))


def _seen(strategy: Strategy, trial: TrialResult) -> Estimate:
    """Return what the plan costs by answers alone: those of its trial, or else recent ones."""
    if trial.estimate is not None and not math.isnan(trial.estimate.value):
        return trial.estimate
    return strategy.monitor.distortion(strategy.recost)


def _note(strategy: Strategy, history: list[Progress], trial: TrialResult) -> None:
    """Add a line to a history."""
    asked, answered, _ = strategy.tally
    line = Progress(
        asked, answered, strategy.beta, strategy.distortion, *_seen(strategy, trial)[:3]
    )
    history.append(line._replace(**strategy.figures()))
    if len(history) > LONGEST_HISTORY:
        history[:] = history[::2]  # the newest is among them
