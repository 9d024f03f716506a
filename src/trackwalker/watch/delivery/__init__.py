"""Messages on their way: kept, tried, delivered once, held back in quiet hours."""
