"""Authentication and authorisation rules, without a web framework or a database."""
