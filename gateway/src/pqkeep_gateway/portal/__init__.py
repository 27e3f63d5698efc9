"""Pages for people, made on the server. They run no script."""
