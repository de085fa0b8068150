"""Candidates beyond memory: working sets that grow round by round, and passes that score all candidates."""
