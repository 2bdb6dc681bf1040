"""``volition evaluate``: its options (command), what it does, writes and prints (run)."""
