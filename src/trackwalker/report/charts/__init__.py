"""Chart geometry: axes, plots, lanes, marks, pictures."""
