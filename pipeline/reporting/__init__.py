"""After a run: its table, its page and its plots."""
