"""Tests of work on many modules: executors and shards, on this machine's loopback."""
