"""People: who they are, how they sign in. Rules only: no web framework, no database."""
