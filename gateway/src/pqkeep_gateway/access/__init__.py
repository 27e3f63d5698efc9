"""Who is asking, and may they. Rules only: no web framework, no database."""
