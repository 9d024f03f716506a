"""How fast a run trains, what share of the hardware's peak that is, what it costs."""
