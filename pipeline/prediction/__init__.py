"""A trained model at work: the model with its inputs and labels, its folder, files of examples, predictions."""
