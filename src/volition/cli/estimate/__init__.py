"""``volition estimate``: its options (command), what it does (run), what it writes and prints."""
