"""The problem: costs, how entities override, free energy and its derivatives."""
