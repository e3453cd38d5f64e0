"""The mathematics: Stein operators, polynomials, kernels, coordinates."""
