"""Log bytes to lines and steps, in one pass, at the speed of the disk cache."""
