"""What two texts say differently, and the instruction that follows from it."""
