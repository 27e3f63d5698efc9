"""Where letters go: to a mail server, into a folder, or nowhere."""
