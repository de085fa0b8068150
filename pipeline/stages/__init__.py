"""The steps of a fit, a module each; `fit.fit` runs them in a `workspace.Workspace`.

Solves of the outputs are in `one_vs_all`; `out_of_core` generates columns where the Gram of all candidates does not
fit.
"""
