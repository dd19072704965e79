"""What everything stands on: values, element types, errors, files, and the IR."""
