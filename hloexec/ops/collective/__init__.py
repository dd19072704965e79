"""Operations in which several devices take part."""
