"""What is done to a module: faults are planted in it, and it is disguised, as a compiler's passes would."""
