"""hloexec where what only Linux has is absent, as on Windows and macOS."""
