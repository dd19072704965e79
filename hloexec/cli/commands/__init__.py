"""One module per command: `command` is what `hloexec NAME` calls, a thin layer over a public function."""
