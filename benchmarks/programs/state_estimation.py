"""A Kalman filter and smoother over many series at once: matrices of a few numbers, factorized at every step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as linalg

from benchmarks.programs.sizes import Program, array, sized


def kalman_smoother(scale: float) -> Program:
    """256 series of 100 steps, states of 12 numbers seen through 6: log-likelihood, smoothed means and variances.

    Each series has noise of its own. The Rauch–Tung–Striebel smoother (1965) goes back over what the filter kept.
    """
    size = sized(scale, least=2)
    series, steps, state, seen = size(256), size(100), size(12), size(6)

    def covariance(root: Any) -> Any:
        return root @ root.T / root.shape[0] + 0.5 * jnp.eye(root.shape[0])

    def smooth(w: Any, loudness: Any, observations: Any) -> Any:
        # Orthogonal but for a decay, so that a long series stays within bounds.
        transition = 0.95 * linalg.expm(w["generator"] - w["generator"].T)
        observing, process, noise = w["observing"], covariance(w["process"]), covariance(w["noise"]) * jnp.exp(loudness)

        def forward(carried: Any, observation: Any) -> Any:
            mean, variance = carried
            predicted = transition @ mean
            spread = transition @ variance @ transition.T + process
            surprise = observation - observing @ predicted
            factor = linalg.cholesky(observing @ spread @ observing.T + noise, lower=True)
            gain = linalg.cho_solve((factor, True), observing @ spread).T
            whitened = linalg.solve_triangular(factor, surprise, lower=True)
            likelihood = -0.5 * whitened @ whitened - jnp.log(jnp.diagonal(factor)).sum()
            mean, variance = predicted + gain @ surprise, spread - gain @ observing @ spread
            return (mean, variance), (likelihood, mean, variance, predicted, spread)

        def backward(carried: Any, kept: Any) -> Any:
            later_mean, later_variance = carried
            mean, variance, predicted, spread = kept
            gain = linalg.cho_solve((linalg.cholesky(spread, lower=True), True), transition @ variance).T
            mean = mean + gain @ (later_mean - predicted)
            variance = variance + gain @ (later_variance - spread) @ gain.T
            return (mean, variance), (mean, jnp.diagonal(variance))

        start = jnp.zeros(state), jnp.eye(state)
        last, (likelihood, means, variances, predicted, spreads) = jax.lax.scan(forward, start, observations)
        # What is kept at a step goes with the prediction for the step after it.
        before = means[:-1], variances[:-1], predicted[1:], spreads[1:]
        _, (smoothed, deviations) = jax.lax.scan(backward, last, before, reverse=True)
        return likelihood.sum(), smoothed, deviations

    weights = {
        "generator": array(state, state),
        "observing": array(seen, state),
        "process": array(state, state),
        "noise": array(seen, seen),
    }
    return jax.vmap(smooth, in_axes=(None, 0, 0)), (weights, array(series), array(series, steps, seen))
