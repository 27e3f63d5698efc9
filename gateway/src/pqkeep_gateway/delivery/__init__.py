"""Where mail is delivered: a mail server, a folder, or nowhere."""
