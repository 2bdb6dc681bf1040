"""Learners: centres and prescriptions from answers, when p is not known."""

from volition.learners.base import Learner
from volition.learners.monitor import Change, Estimate
from volition.learners.tabular import RobbinsMonro, TabularClustering

__all__ = ["Change", "Estimate", "Learner", "RobbinsMonro", "TabularClustering"]
