"""Recording runs in little memory."""
