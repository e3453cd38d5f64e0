"""Discrepancies, one a file: how each is set up, and the plan it computes with."""
