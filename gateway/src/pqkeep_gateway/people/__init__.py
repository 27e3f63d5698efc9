"""Rules for users: accounts, sign-in and sessions. No web framework, no database."""
