"""From an image to a feature vector: sphog (the paper's), hog, raw."""
