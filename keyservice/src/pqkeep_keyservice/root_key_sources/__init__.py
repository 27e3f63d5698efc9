"""Where root keys come from: files, credentials of the service manager, PKCS#11 tokens, commands."""
