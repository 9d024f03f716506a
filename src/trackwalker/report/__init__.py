"""Views of one verdict: terminal and HTML. Import the view you need; nothing heavy is loaded here.

For other rooms: `terminal` (a verdict as text); `markdown` (for a ticket); `html` (as a page); `view` (what every page
shows); `story.background` (what was before and beside it); `story.cost` (what it cost); `story.heat` (all hosts over
time); `changed` (what changed); `compare` (two jobs); `triage` (the log alone); `tsdb` (recordings); `perf.terminal`
(performance as text); `perf.view` (as tables); `perf.page` (as a page); `perf.diff` (two jobs); `perf.drill` (one
operation); `perf.serve` (a page that opens traces); `words` (numbers and names as people read them); `ranges` (many
names in few words); `text` (foreign text made harmless); `commands` (commands to copy); `charts.plots` (the geometry of
charts); `charts.throughput_timeline` (the chart of steps); `charts.marks` (what is marked in it); `charts.png` (a chart
as an image).
"""
