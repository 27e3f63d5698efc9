"""Sources of root keys: files, credentials of the service manager, PKCS#11 tokens and commands."""
