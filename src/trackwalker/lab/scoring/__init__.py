"""Cases, grades, scoreboards."""
