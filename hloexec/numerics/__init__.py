"""How far values lie apart, and how far rounding may have carried them: comparison, verdicts, tolerances and their
derivations (a bound read off the module, or runs that round at random), statistics of a value."""
