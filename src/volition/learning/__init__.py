"""Learning from answers: a study holds entities, questions, answers and a strategy."""
