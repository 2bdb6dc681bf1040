"""Has behaviour changed? Late answers against what earlier ones lead one to expect."""
