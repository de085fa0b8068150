"""How much lower a held-out error must be to be more than chance."""

LEAST_GAIN = 0.01


def least_gain(n_rows: float) -> float:
    """Return the relative fall of the mean squared error on so many held-out rows below which it may be chance.

    About one standard error of the difference of two fits whose residuals are alike, and 1 % (mathematics.md, eq. 83).
    """
    return max(LEAST_GAIN, 0.5 / max(n_rows, 1.0) ** 0.5)
