"""What a trained model is in numbers, whatever its inputs and labels mean: kernel expansion, probabilities, scores."""
