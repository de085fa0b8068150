"""The weights: penalised solves, at once or by column generation; least squares; refit."""
