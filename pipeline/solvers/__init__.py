"""Solvers on sufficient statistics: no sample, no feature, no path in here."""
