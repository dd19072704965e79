"""Operations that compute each element from the elements at the same position: arithmetic, functions, conversion,
selection."""
