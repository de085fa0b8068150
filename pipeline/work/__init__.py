"""Where the steps of a fit keep what they make, and who computes it: in memory and here, or a folder and executors."""
