"""cuBLAS and cuBLASLt: matrix products."""
