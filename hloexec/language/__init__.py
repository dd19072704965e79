"""HLO in its written forms: text, XLA's protos, StableHLO, and files of values."""
