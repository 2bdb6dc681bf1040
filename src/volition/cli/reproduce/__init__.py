"""``volition reproduce``: its options (command), and what it does (run)."""
