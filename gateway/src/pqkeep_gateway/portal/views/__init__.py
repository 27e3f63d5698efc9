"""The pages, and the values that they show."""
