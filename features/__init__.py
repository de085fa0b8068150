"""Images and tables in, feature vectors out; knows neither where results are stored nor how work is scheduled."""
