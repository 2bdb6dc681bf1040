"""Parts that learners are made of."""

from volition.learning.drift import Answers, Change, DriftMonitor

__all__ = ["Answers", "Change", "DriftMonitor"]
