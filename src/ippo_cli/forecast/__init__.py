"""Forecast of collapse: the probability that the held-out score falls, from logged metrics. Does not import torch."""
