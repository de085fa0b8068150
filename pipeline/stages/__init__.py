"""The steps of a fit in three rooms: choose, fit, after; `fit_model.fit` runs them in a `workspace.Workspace`."""
