"""Prime factors."""

from __future__ import annotations

__all__ = ["factorization"]


def factorization(number: int) -> dict[int, int]:
    """The primes of a number, and how often each divides it."""
    found: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        found[number] = found.get(number, 0) + 1
    return found
