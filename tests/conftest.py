"""How Hypothesis draws (the same examples in every run, unless HYPOTHESIS_PROFILE=explore asks for others), and that each
pass over a plan is checked.
"""

from __future__ import annotations

import os

import hypothesis

os.environ.setdefault("HLOEXEC_CHECK_PLANS", "1")

hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("explore", print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
