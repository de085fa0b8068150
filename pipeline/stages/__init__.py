"""The steps of a fit, a module each; `fit.fit` runs them in a `workspace.Workspace`.

`out_of_core` generates columns where the Gram of all candidates does not fit.
"""
