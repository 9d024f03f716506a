"""Views of one verdict: terminal and HTML. Import the view you need; nothing heavy is loaded here.

For other rooms: `terminal` (a verdict as text); `markdown` (for a ticket); `html` (as a page); `view` (what every page
shows); `words` (numbers and names as people read them); `text` (foreign text made harmless); `charts.plots` (the
geometry of charts).
"""
