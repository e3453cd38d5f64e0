"""Whether a discrepancy is more than chance: bootstraps, limits, tests."""
