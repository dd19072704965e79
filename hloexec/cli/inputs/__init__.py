"""What commands are given: modules, and values in files, snapshots and scripts or exchanged with the host."""
