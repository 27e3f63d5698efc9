"""pqkeepd: starts, supervises and administers the two processes of an installation."""
