"""From images to feature vectors: a module for each descriptor; `extraction` computes the one that is asked for."""
