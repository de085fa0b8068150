"""Rows for the pipeline: the feature store, and features on the fly."""
