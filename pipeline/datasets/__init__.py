"""Rows for the pipeline: the feature store, features on the fly, lists of candidates."""
