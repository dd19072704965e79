"""`hx.check` on training steps in which a NaN or an infinity is planted, and on steps that have some on purpose."""
