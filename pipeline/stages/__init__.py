"""The stages of a run, in order: features, centers, statistics, solve, evaluate; one module each.

A stage is a pure function of one item, run over items by an executor. The item is the unit of work, of retry
and of resume: it is done when its marker is committed, and never done again.
"""
