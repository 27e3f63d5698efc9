"""What each page reads."""
