"""Decision values against labels, in numbers alone: probabilities, their temperature, scores."""
