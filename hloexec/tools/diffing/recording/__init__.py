"""Recording what a run computes, in little memory: arrays by number, data flow in columns, and the run's observer."""
