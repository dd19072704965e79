"""What is known of a module before it runs holds in a run."""
