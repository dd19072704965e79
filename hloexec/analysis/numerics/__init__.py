"""How far values are apart, and how far rounding may have moved them: comparison, verdicts, statistics of values, and
tolerances, derived from the module or measured by runs with random rounding."""
