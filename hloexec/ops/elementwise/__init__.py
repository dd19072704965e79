"""Operations that compute each element from the elements at its place: arithmetic, functions, conversion, selection."""
