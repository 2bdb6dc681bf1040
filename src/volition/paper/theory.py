"""Theorems 1 to 3 against experiments: descent and steps, critical betas, sensitivity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from volition.annealing.anneal import anneal
from volition.annealing.schedules import Critical, Geometric
from volition.annealing.stability import critical_beta, sensitivity, sensitivity_bound
from volition.core.autonomy import Autonomy, DistanceAutonomy
from volition.core.problem import Problem
from volition.datasets import load_four_groups, make_nested_groups
from volition.paper.methods import uniform
from volition.paper.page import Page
from volition.paper.study import Case, Row, Settings, Study
from volition.solvers import Armijo, FixedPoint, Gradient

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
#: iterations that are looked at for Theorem 1, and the beta
STEPS, BETA = 150, 40.0
#: iteration at which shorter and longer steps are tried, and how long they are
TRIED_AT, LENGTHS = 3, tuple(np.linspace(0, 2.5, 51).round(3).tolist())
#: shares of kappa = (K - 1) / K, beyond which entities avoid what they are prescribed
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.05)


def _descent_autonomy(name: str) -> Autonomy:
    return uniform(0.2, 4) if name == "fixed" else DistanceAutonomy(0.5, temperature=0.1)


def cases(settings: Settings) -> list[Case]:
    """Return the cases of all three theorems."""
    found = [
        Case(f"Theorem 1, p {name}, {solver}", {"theorem": 1, "p": name, "solver": solver}, 1.0)
        for name in ("fixed", "moving")
        for solver in ("fixed point", "Armijo", "exact")
    ]
    for K in (4,) if settings.quick else (4, 16):
        for share in SHARES:
            params = {"theorem": 2, "K": K, "share": share}
            found.append(
                Case(f"Theorem 2, K={K}, {share} of (K-1)/K", params, 2.0 if K == 4 else 6.0)
            )
    for name in ("four groups",) if settings.quick else ("four groups", "nested groups"):
        found.append(Case(f"Theorem 3, {name}", {"theorem": 3, "data": name}, 15.0))
    return found


def solve(params: dict[str, Any], settings: Settings) -> Row:
    """Do the case of one theorem."""
    return {1: _descend, 2: _split, 3: _bound}[params["theorem"]](params, settings)


def _descend(params: dict[str, Any], settings: Settings) -> Row:
    """Follow the free energy iteration by iteration, from one start for all solvers."""
    problem = Problem(load_four_groups().data, autonomy=_descent_autonomy(params["p"]))
    rng = np.random.default_rng(settings.seed)
    Y = problem.centers(0.5 + 0.1 * rng.standard_normal((4, 2)))
    solver: Any = {"fixed point": FixedPoint(), "Armijo": Armijo(), "exact": Gradient()}[
        params["solver"]
    ]
    energies, steps, growths, differences = [], [], [], []
    along: list[float] = []
    for number in range(STEPS):
        sums = problem.moments(Y, BETA)
        energies.append(float(sums.free_energy))
        found = solver.solve(problem, Y, BETA, max_iter=1, tol=0.0)
        steps.append(float(found.step_size))
        mass = sums.mass[:, None]
        # Theorem 1: the fixed point's step is half the gradient over the mass.
        predicted = Y - problem.gradient(Y, BETA, sums) / (2 * mass)
        differences.append(float((found.centers - predicted).abs().max()))
        ahead = problem.moments(found.centers, BETA)
        growths.append(float((ahead.mass / sums.mass).max()))
        if number == TRIED_AT:
            along = [
                float(problem.moments(Y + r * (found.centers - Y), BETA).free_energy)
                for r in LENGTHS
            ]
        moved, Y = found.centers - Y, found.centers
    sums = problem.moments(Y, BETA)
    energies.append(float(sums.free_energy))
    return {
        "free_energy": energies,
        "along_the_step": along,
        "step": steps,
        "last_move": float(torch.linalg.norm(moved)),
        "mass_growth": max(growths),
        "step_against_theorem": max(differences),
        "gradient_at_the_end": float(torch.linalg.norm(problem.gradient(Y, BETA, sums))),
    }


def _split(params: dict[str, Any], settings: Settings) -> Row:
    """The first critical beta: closed form, Theorem 2, and the split that is seen."""
    X, K = load_four_groups().data, params["K"]
    most = (K - 1) / K
    kappa = min(1.0, params["share"] * most)
    autonomy = uniform(kappa, K)
    variance = np.linalg.eigvalsh(np.cov(X.T, bias=True))[-1]
    left = abs(1 - kappa / most)
    closed = math.inf if left < 1e-12 else 1 / (2 * variance * left**2)
    start = np.repeat(X.mean(0)[None], K, axis=0)
    predicted = critical_beta(X, start, autonomy=autonomy, beta=1.0).beta
    result = anneal(
        Problem(X, autonomy=autonomy), K, solver=Gradient(), random_state=settings.seed,
        predict=False,
        schedule=Geometric(0.5 * min(predicted, 1e5), min(3 * predicted, 1e6), tau=1.01),
    )  # fmt: skip
    seen = [t.beta for t in result.transitions]
    return {
        "kappa": kappa,
        "closed_form": closed if math.isfinite(closed) else None,
        "predicted": predicted if math.isfinite(predicted) else None,
        "seen": seen[0] if seen else None,
    }


def _bound(params: dict[str, Any], settings: Settings) -> Row:
    """dY/dbeta against Theorem 3's bound, between transitions."""
    four = params["data"] == "four groups"
    X = load_four_groups().data if four else make_nested_groups().data
    autonomy = uniform(0.2, 4) if four else uniform(1 / 16, 16)
    problem = Problem(X, autonomy=autonomy)
    result = anneal(problem, 4 if four else 16, schedule=Critical(), tol=1e-9, predict=False)
    betas, speeds, bounds = [], [], []
    for record, Y in zip(result.history, result.path, strict=True):
        exact = Gradient().solve(problem, problem.centers(Y), record.beta, max_iter=500, tol=1e-9)
        at: dict[str, Any] = {"autonomy": autonomy, "beta": record.beta}
        limit = sensitivity_bound(X, exact.centers.numpy(), **at)
        if math.isinf(limit):
            continue  # at a transition, where the theorem does not speak
        betas.append(float(record.beta))
        speeds.append(float(np.linalg.norm(sensitivity(X, exact.centers.numpy(), **at))))
        bounds.append(float(limit))
    return {"beta": betas, "speed": speeds, "bound": bounds}


def present(rows: list[Row], page: Page) -> None:
    """One picture and one table for each theorem."""
    _present_descent([row for row in rows if row["theorem"] == 1], page)
    _present_splits([row for row in rows if row["theorem"] == 2], page)
    _present_bounds([row for row in rows if row["theorem"] == 3], page)


def _present_descent(rows: list[Row], page: Page) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    colors = {"fixed point": BLUE, "Armijo": ORANGE, "exact": GREEN}
    names = {
        "fixed point": "Algorithm 1",
        "Armijo": "Algorithm 3",
        "exact": "exact gradient, L-BFGS",
    }
    table = []
    for ax, p in zip(axes, ("fixed", "moving"), strict=False):
        mine = [row for row in rows if row["p"] == p]
        least = min(min(row["free_energy"]) for row in mine)
        for row in mine:
            above = np.maximum(np.array(row["free_energy"]) - least, 1e-12)
            ax.plot(above, color=colors[row["solver"]], label=names[row["solver"]])
            rises = np.diff(row["free_energy"])
            table.append(
                {
                    "p": "does not depend on Y" if p == "fixed" else "depends on Y",
                    "solver": names[row["solver"]],
                    "F at the end": row["free_energy"][-1],
                    "largest rise of F in a step": float(max(rises.max(), 0.0)),
                    "gradient at the end": row["gradient_at_the_end"],
                    "last move of Y": row["last_move"],
                    "largest growth of a mass": row["mass_growth"],
                    "step sizes of Armijo's rule": _range(row)
                    if row["solver"] == "Armijo"
                    else None,
                    "step against Theorem 1": row["step_against_theorem"]
                    if row["solver"] == "fixed point"
                    else None,
                }
            )
        ax.set(
            yscale="log", xlabel="iteration", ylabel="F(Y) above the least reached (at least 1e-12)"
        )
        ax.legend(frameon=False, loc="upper right" if p == "fixed" else "center right")
    axes[0].set_title(f"p fixed: uniform override, kappa = 0.2, beta = {BETA:g}")
    axes[1].set_title(f"p moves with Y: kappa = 0.5, T = 0.1, beta = {BETA:g}")
    for p, style in (("fixed", "-"), ("moving", "--")):
        row = next(r for r in rows if r["p"] == p and r["solver"] == "fixed point")
        rise = np.array(row["along_the_step"]) - row["along_the_step"][0]
        axes[2].plot(LENGTHS, rise / np.abs(rise).max(), style, color=BLUE, label=f"p {p}")
    axes[2].axvline(1, color=GREY, lw=1, ls=":")
    axes[2].set(xlabel="length r of the step (1: Algorithm 1's own)", ylabel="change of F, scaled")
    axes[2].set_title(f"Algorithm 1: F along its step, iteration {TRIED_AT}")
    axes[2].legend(frameon=False)
    page.text(
        "**Theorem 1.** An iteration of Algorithm 1 is the gradient step -1/2 P^-1 grad F as long "
        "as p does not depend on Y, and F falls (last column: largest difference). Where p depends "
        "on Y the iteration holds p fixed while it moves the centres, and is no gradient step of "
        f"F(Y): the table has its last move after {STEPS} iterations, and the gradient of F there. "
        "Four groups, K = 4, one start for all."
    )
    page.picture(
        "theorem1",
        figure,
        "Left and middle: free energy along the iterations. Right: what shorter and longer steps "
        "than Algorithm 1's would do.",
    )
    page.table("theorem1", table)
    fixed = next(r for r in rows if r["p"] == "fixed" and r["solver"] == "fixed point")
    page.fact(
        "step of Algorithm 1 against Theorem 1, largest difference", fixed["step_against_theorem"]
    )


def _range(row: Row) -> str:
    """Return the smallest and largest step, as long as F falls: then rounding decides."""
    falling = -np.diff(row["free_energy"]) > 1e-12
    steps = row["step"][: len(falling) if falling.all() else int(falling.argmin())]
    low, high = min(steps), max(steps)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _present_splits(rows: list[Row], page: Page) -> None:
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    for K, color in ((4, BLUE), (16, ORANGE)):
        mine = [row for row in rows if row["K"] == K]
        if not mine:
            continue
        kappa = np.linspace(0, 1, 2001)
        left = np.abs(1 - kappa * K / (K - 1))
        base = mine[0]["closed_form"]
        theory = np.where(left > 0.03, base / np.maximum(left, 1e-9) ** 2, np.nan)
        ax.plot(kappa, theory, color=color, label=f"K = {K}, closed form")
        shown = [row for row in mine if row["seen"] is not None]
        ax.plot([r["kappa"] for r in shown], [r["seen"] for r in shown], "o", color=color,
                label=f"K = {K}, seen")  # fmt: skip
        ax.axvline((K - 1) / K, color=color, ls=":", lw=1)
    ax.set(yscale="log", xlabel="kappa (uniform override)", ylabel="first critical beta")
    ax.legend(frameon=False)
    split = [row for row in rows if row["closed_form"] is not None]
    exact = max(abs(row["predicted"] / row["closed_form"] - 1) for row in split)
    found = [row for row in split if row["seen"] is not None]
    seen = max(100 * abs(row["seen"] / row["closed_form"] - 1) for row in found)
    never = [row for row in rows if row["closed_form"] is None]
    page.text(
        "**Theorem 2.** The first critical beta of the four groups against kappa. Closed form: "
        "1 / (2 lambda (1 - kappa K / (K - 1))^2) with lambda the largest variance; beyond "
        "kappa = (K - 1) / K entities avoid what they are prescribed, and it falls again. Theorem "
        f"2 agrees to {exact:.0e}. A split was seen in {len(found)} of {len(split)} cases, within "
        f"{seen:.1f} % (betas in steps of 1 %), and in {sum(r['seen'] is not None for r in never)} "
        f"of {len(never)} with kappa = (K - 1) / K, where there should be none."
    )
    page.picture(
        "theorem2",
        figure,
        "Four groups: autonomy delays the first split; dotted: kappa = (K - 1) / K.",
    )
    page.table(
        "theorem2",
        [
            {"K": r["K"], "kappa": r["kappa"], "closed form": r["closed_form"],
             "Theorem 2": r["predicted"], "seen": r["seen"]}
            for r in rows
        ],
    )  # fmt: skip
    page.fact("Theorem 2 against the closed form, largest relative difference", exact)
    page.fact("splits seen against the closed form, largest, %", seen)


def _present_bounds(rows: list[Row], page: Page) -> None:
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    states, broken, share = 0, 0, 0.0
    for row, color in zip(rows, (BLUE, ORANGE), strict=False):
        beta, speed, bound = (np.array(row[key]) for key in ("beta", "speed", "bound"))
        ax.plot(beta, bound, "--", color=color, label=f"{row['data']}: bound")
        ax.plot(beta, speed, "o-", color=color, ms=3, label=f"{row['data']}: ‖dY/dbeta‖")
        states, broken = states + len(beta), broken + int((speed > bound).sum())
        share = max(share, float((speed / bound).max()))
    ax.set(xscale="log", yscale="log", xlabel="beta", ylabel="‖dY/dbeta‖")
    ax.legend(frameon=False, fontsize=8)
    page.text(
        "**Theorem 3.** Between transitions ‖dY/dbeta‖ stays below N sqrt(K) R / (e beta delta) in "
        f"{states - broken} of {states} states; it is at most {share:.0e} of it. R is the diagonal "
        "of the box that holds the data, delta the least eigenvalue of the Hessian in the units of "
        "Theorem 2."
    )
    page.picture(
        "theorem3", figure,
        "How fast centres move with beta, and Theorem 3's bound. Four groups: K = 4, uniform "
        "override with kappa = 0.2; nested groups: K = 16, kappa = 1/16.",
    )  # fmt: skip
    page.table(
        "theorem3",
        [
            {"data": row["data"], "states": len(row["beta"]),
             "largest ‖dY/dbeta‖ / bound": float(np.max(np.array(row["speed"]) / row["bound"]))}
            for row in rows
        ],
    )  # fmt: skip
    page.fact("states that break Theorem 3's bound", broken)
    page.fact("largest share of Theorem 3's bound", share)


THEORY = Study("theory", "Theorems 1 to 3", cases, solve, present)
