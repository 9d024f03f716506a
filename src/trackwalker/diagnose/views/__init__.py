"""What a verdict is told with: stories, pictures' numbers, words."""
