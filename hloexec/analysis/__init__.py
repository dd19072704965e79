"""What is known of a module and its values without a tool: data flow, rounding, memory."""
