"""Tests of triage."""
