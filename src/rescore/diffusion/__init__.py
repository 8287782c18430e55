"""The mathematics of the paper's sections 2.3 and 3, as pure functions."""
