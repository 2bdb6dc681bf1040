"""``volition learn``: its options (command), who answers (source), what it does (run), results."""
