"""After the fit: moved centers, the temperature of the probabilities, the evaluation."""
