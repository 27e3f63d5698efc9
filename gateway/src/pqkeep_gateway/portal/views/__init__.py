"""The pages, and the values for their templates."""
