"""Running a recorded module again, instruction by instruction, with other values in places."""
