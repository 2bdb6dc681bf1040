"""Fast inner loops: what they compute stands in ``core.problem``."""
