"""What commands print: tables and sentences for the terminal, and the same data as JSON."""
