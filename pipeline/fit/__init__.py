"""The steps of a fit, which the command and the estimators run alike: `fit_model.fit` calls them in turn."""
