"""From transitions to a trained state, for S seeds."""
