"""Images and tables in, feature vectors out: data sources and image → vector.

Knows nothing of where results are stored or of how work is scheduled.
"""
