"""Posteriors of the package `inference_gym`, samplers that draw from them, and statements held to its ground truth."""

MODELS = {
    "Banana": "banana",
    "EightSchools": "eight schools",
    "NealsFunnel": "Neal's funnel",
    "BrownianMotionUnknownScalesMissingMiddleObservations": "Brownian motion",
    "ConvectionLorenzBridge": "Lorenz bridge",
    "IllConditionedGaussian": "ill-conditioned Gaussian",
    "SyntheticLogGaussianCoxProcess": "log-Gaussian Cox process",
    "StochasticVolatilitySP500Small": "stochastic volatility",
    "SyntheticItemResponseTheory": "item response theory",
}
"""Classes of the package, and what tables call them: those that run on JAX and have a ground truth."""

SAMPLERS = ("NUTS", "MALA", "MCLMC", "mean field", "Pathfinder")
