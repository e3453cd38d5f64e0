"""Draws in, programs run: what every room above the mathematics stands on."""
