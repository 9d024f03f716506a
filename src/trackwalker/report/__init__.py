"""Views of one verdict: terminal and HTML. Import the view you need; nothing heavy is loaded here."""
