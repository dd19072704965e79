"""Prime factors and divisors."""

from __future__ import annotations


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


def divisors(number: int) -> list[int]:
    """The divisors of a number, itself left out, the largest first."""
    found = [1]
    for prime, count in factorization(number).items():
        found = [each * prime**power for each in found for power in range(count + 1)]
    return sorted(found, reverse=True)[1:]
